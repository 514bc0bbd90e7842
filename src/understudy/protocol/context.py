"""What a part of the protocol may ask of the job as a whole. Implemented by `job`; no part knows more of it."""

from typing import Protocol

from understudy.foundation.ids import MemberId, Rank
from understudy.protocol.commands import Command, DecisionKind, Outcome
from understudy.protocol.reasons import Reason


class Context(Protocol):
    def found(self, at: float) -> list[Command]:
        """Enough hosts are there: the world begins."""
        ...

    def open(
        self,
        at: float,
        reason: Reason,
        kind: DecisionKind,
        exit_code: int = 1,
        rank: Rank | None = None,
        member: MemberId | None = None,
    ) -> list[Command]:
        """Open the next generation, or stop the job when it cannot be manned, or when that has not helped before."""
        ...

    def after(self, at: float, commands: list[Command]) -> list[Command]:
        """Something was heard that a round may have waited for: go on with it as far as that is possible now."""
        ...

    def stop(self, at: float, outcome: Outcome, reason: Reason, exit_code: int) -> list[Command]: ...
