"""The stages of a job. Which follows which is drawn in `job`."""

import enum


class Stage(enum.Enum):
    FOUNDING = "founding"  # a new world on its way to its first commit
    TRAINING = "training"
    STOPPING = "stopping"  # the generation was abandoned; positions and joiners are awaited
    FORMING = "forming"  # the verdict is out; regroup and transfer are under way
    STOPPED = "stopped"
