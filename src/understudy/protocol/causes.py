"""Why a member was lost, as a value."""

import enum
from dataclasses import dataclass

from understudy.foundation.exits import DEVICE_LOST
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


class Afterwards(enum.Enum):
    """May a device be used again?"""

    AGAIN = "again"
    UNKNOWN = "unknown"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFault:
    """What the driver of a device said of it. `blames_script`: the script probably did it."""

    text: str
    afterwards: Afterwards
    blames_script: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """`detail` is for people; `fingerprint` is equal for two failures that are the same failure. `repeats`: nothing but
    a change of the script helps, so that not even the first of them is answered with a replacement. `device_fault`: of
    the device that the process had, while it lived."""

    kind: CauseKind
    detail: str
    exit_code: int = 1
    step: StepNumber | None = None
    fingerprint: str = ""
    repeats: bool = False
    device_fault: DeviceFault | None = None

    @property
    def own_fault(self) -> bool:
        """Would a replacement running the same code probably meet the same end? On a device too: most often it is a
        kernel of the script that spoils one, unless its driver says that the device is at fault."""
        fault = self.device_fault
        if fault is not None and not fault.blames_script and fault.afterwards is not Afterwards.UNKNOWN:
            return False
        if self.kind is CauseKind.SIGNAL:
            return -self.exit_code not in EXTERNAL_SIGNALS
        return self.kind in (CauseKind.EXIT, CauseKind.SCRIPT_ERROR)

    @property
    def lost_its_device(self) -> bool:
        """Nothing can be said any more of what its device does, and it ended itself. It is an exit code and no kind of
        its own, because a former version has to read it."""
        return self.kind is CauseKind.EXIT and self.exit_code == DEVICE_LOST

    @property
    def reason(self) -> Reason:
        ended = because(Code.DEVICE_LOST if self.lost_its_device else _CODES[self.kind], text=self.detail)
        if self.device_fault is None:
            return ended
        return because(Code.DEVICE_REPORTED, cause=ended, text=self.device_fault.text)

    @property
    def identity(self) -> str:
        return self.fingerprint or f"{self.kind.value}:{self.exit_code}"
