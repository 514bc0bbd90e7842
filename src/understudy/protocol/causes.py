"""Why a member was lost, as a value."""

import enum
from dataclasses import dataclass

from understudy.foundation.ids import StepNumber
from understudy.protocol.reasons import Code, Reason, because


class CauseKind(enum.Enum):
    EXIT = "exit"  # ended with an exit code
    SIGNAL = "signal"  # ended by a signal that it did not get from us
    SCRIPT_ERROR = "script error"  # the user's script raised
    HANG = "hang"  # made no progress, and we ended it
    DISMISSED = "dismissed"  # we ended it for another reason (start over, job stop)


_CODES = {
    CauseKind.EXIT: Code.EXITED,
    CauseKind.SIGNAL: Code.SIGNALLED,
    CauseKind.SCRIPT_ERROR: Code.RAISED,
    CauseKind.HANG: Code.HUNG,
    CauseKind.DISMISSED: Code.DISMISSED,
}
EXTERNAL_SIGNALS = frozenset({9, 15, 19})
"""SIGKILL, SIGTERM, SIGSTOP come from outside of the script: the same one again at the same step proves nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """`detail` is for people; `fingerprint` is equal for two failures that are the same failure. `repeats`: nothing but
    a change of the script helps, so that not even the first of them is answered with a replacement."""

    kind: CauseKind
    detail: str
    exit_code: int = 1
    step: StepNumber | None = None
    fingerprint: str = ""
    repeats: bool = False

    @property
    def own_fault(self) -> bool:
        """Would a replacement running the same code probably meet the same end?"""
        if self.kind is CauseKind.SIGNAL:
            return -self.exit_code not in EXTERNAL_SIGNALS
        return self.kind in (CauseKind.EXIT, CauseKind.SCRIPT_ERROR)

    @property
    def reason(self) -> Reason:
        return because(_CODES[self.kind], text=self.detail)

    @property
    def identity(self) -> str:
        return self.fingerprint or f"{self.kind.value}:{self.exit_code}"
