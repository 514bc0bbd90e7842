"""Supervises the processes of one host: starts, watches, kills, and carries messages. Never imports torch.

Belongs here: pidfds, Unix sockets, log redirection, the store process. Must never be here: decisions about membership.
"""
