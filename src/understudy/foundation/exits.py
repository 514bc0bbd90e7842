"""Exit codes with which a worker process of ours ends itself, so that its agent knows why (docs/exit-codes.md)."""

NO_ORDERS = 70  # its agent cannot be understood any more
DEVICE_LOST = 71  # nothing can be said any more of what its device does
