"""How far the job is on its way to its end. Written by `job` and `member_loss`."""

from dataclasses import dataclass, field

from understudy.foundation.ids import MemberId, Rank
from understudy.protocol.commands import StopJob
from understudy.protocol.succession import FORGOTTEN


@dataclass(slots=True)
class EndingState:
    """`finished`: have no more steps. `released`: all had, and scripts may go on to their end. `left`: ranks whose
    scripts have ended."""

    finished: set[MemberId] = field(default_factory=set, metadata=FORGOTTEN)
    released: bool = False
    left: set[Rank] = field(default_factory=set)
    stopped: StopJob | None = None
