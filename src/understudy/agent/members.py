"""What the agent knows of one worker process: how it was started, what it said, why it ended."""

from dataclasses import dataclass, replace

from understudy.agent.logs import Outlet
from understudy.agent.processes import WatchedProcess, cause_of
from understudy.detection.progress import Place, Progress, ProgressReader
from understudy.foundation.ids import MemberId, StepNumber
from understudy.protocol.causes import Cause, CauseKind
from understudy.wire.messages import ScriptFailed

_IN_ITS_STEPS = (Place.IN_STEP, Place.BETWEEN_STEPS, Place.RECOVERING, Place.FINISHED, Place.RELEASED)


def step_of(progress: Progress) -> StepNumber | None:
    """The step whose state it holds; None before its first commit."""
    in_steps = progress.place in _IN_ITS_STEPS and progress.step >= 0
    return StepNumber(progress.step) if in_steps else None


@dataclass(slots=True)
class Worker:
    """One process incarnation on this host."""

    member: MemberId
    page: ProgressReader
    outlets: tuple[Outlet, ...]
    process: WatchedProcess | None = None  # None when it could not be started
    rank: int | None = None
    local_rank: int | None = None  # its place on this host, which says which device it uses if nothing else does
    device: int | None = None  # the number of its device, of those that are visible here, if that was decided
    warm: bool = False
    failure: ScriptFailed | None = None
    first_sign: float | None = None  # of its end: its failure message, the end of its connection
    ended_for: str | None = None  # we ended it, and why
    ended_for_hang: bool = False
    started_at: float = 0.0

    def assigned(self, rank: int) -> None:
        if self.rank is None:
            self.rank = rank
            for outlet in self.outlets:
                outlet.assigned(rank)

    @property
    def device_number(self) -> int | None:
        return self.local_rank if self.device is None else self.device

    def step(self) -> StepNumber | None:
        return step_of(self.page.look())

    def cause(self, code: int) -> Cause:
        """Why it ended. What we did ourselves comes first, then what the script said, then the bare code. A script that
        raised and then took too long to end did not hang: its replacement may well meet the same error."""
        bare = cause_of(code, self.step())
        if self.ended_for is not None and not (self.ended_for_hang and self.failure is not None):
            kind = CauseKind.HANG if self.ended_for_hang else CauseKind.DISMISSED
            return replace(bare, kind=kind, detail=self.ended_for)
        if self.failure is not None and code != 0:
            said = self.failure
            return replace(
                bare,
                kind=CauseKind.SCRIPT_ERROR,
                detail=said.summary,
                exit_code=code if code > 0 else 1,
                fingerprint=said.fingerprint,
                repeats=said.repeats,
                step=bare.step if said.step is None else StepNumber(said.step),
            )
        return bare

    def close(self) -> None:
        for outlet in self.outlets:
            outlet.close()
        self.page.close()
