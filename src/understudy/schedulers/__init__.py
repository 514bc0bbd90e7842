"""Watches what a scheduler says of the job's hosts, beside the coordinator.

Belongs here: how a scheduler is asked, and what its answer leads to: a request, or nothing. Must never be here: a
decision about membership, which is the protocol's; a request is evidence and may be refused.
"""
