"""Messages between processes and how they are framed. Nothing else: no decisions, no sockets kept open.

Everything that arrives is untrusted until it has been decoded into one of these types. No pickle.
"""
