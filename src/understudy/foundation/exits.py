"""Exit codes with a meaning that another program acts on (docs/exit-codes.md): an agent on its workers', a scheduler on
those of agents and coordinators."""

NO_RENDEZVOUS = 69  # of an agent that finds no coordinator, and of a job that its hosts do not come to
NO_ORDERS = 70  # of a worker: its agent cannot be understood any more
DEVICE_LOST = 71  # of a worker: nothing can be said any more of what its device does
START_AGAIN = 75  # reserved: the job has saved its state and stopped, and wants to be started again
