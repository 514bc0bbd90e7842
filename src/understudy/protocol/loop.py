"""What a member does next whenever it is not inside a step: one rule for the training loop and for the simulator.

It holds at every return to the loop: at its beginning, after a step, after a recovery, and also for a member that had
reached its last step and asked to be released. A recovery may take such a member back to an earlier state; then the
missing steps run again.
"""

import enum


class Next(enum.Enum):
    RECOVER = "recover"  # its generation was abandoned
    STEP = "step"
    FINISH = "finish"  # ask to be released


def what_next(holds: int | None, total: int, *, abandoned: bool) -> Next:
    """`holds`: the number of steps in its state; None: it has none yet. `total`: the steps of the whole training."""
    if abandoned:
        return Next.RECOVER
    return Next.STEP if holds is None or holds < total else Next.FINISH
