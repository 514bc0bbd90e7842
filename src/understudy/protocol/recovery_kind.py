"""How the world is recovered: to which state, with which processes. Ordinary until a part decides otherwise, and
ordinary again once the world has resumed."""

import enum
from dataclasses import dataclass

from understudy.protocol.probation import StepDown


class Target(enum.Enum):
    NEWEST = "newest"  # the newest state that the survivors hold or can apply
    AGREED = "agreed"  # the last state on which all twins agreed


class Processes(enum.Enum):
    KEPT = "kept"  # survivors stay, and vacant ranks go to spares
    SAVING = "saving"  # all processes are to begin anew, once their state is saved
    FRESH = "fresh"  # all begin anew: ranks go to new processes, whether spares are wanted or not


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryKind:
    """`below`: a state that turned out bad, from which the world falls back to an older one or another source."""

    target: Target = Target.NEWEST
    processes: Processes = Processes.KEPT
    below: StepDown | None = None


ORDINARY = RecoveryKind()
