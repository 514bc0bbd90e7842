"""Bodies that compute or communicate after an optimizer has stepped: their fence is at the end of the body.

What their optimizers change is copied, so that it can be taken back until the fence is passed (`state.undo`). All ranks
must do so or none: where some ranks met at their first optimizer and others at the ends of their bodies, both would
wait for ever.
"""

from collections.abc import Callable

from understudy.groups.world import World
from understudy.state.protected_state import Protected
from understudy.state.undo import Undo
from understudy.training.status import MemberStatus
from understudy.training.step_inspector import StepInspector


class LateFence:
    """Of one member. `undo` is None while fences are before the first optimizer."""

    def __init__(
        self,
        *,
        protected: Protected,
        world: World,
        status: MemberStatus,
        inspector: StepInspector,
        note: Callable[[str], None],
    ) -> None:
        self._undo = Undo(protected)
        self._world, self._status, self._inspector, self._note = world, status, inspector, note
        self._is_late = False  # on all ranks alike

    @property
    def undo(self) -> Undo | None:
        return self._undo if self._is_late else None

    def agree(self) -> None:
        """A collective, with each world and each generation. Bodies may differ from rank to rank, and a joiner has seen
        no body but its rehearsal."""
        self._use(bool(self._world.words.largest(int(self._is_late or self._inspector.late))))

    def look_at(self, step: int) -> None:
        """A later body may be the first to compute on after an optimizer. It was fenced in the usual way."""
        if self._status.established and self._inspector.late and not self._is_late:
            self._use(True, f" from step {step + 1} on")

    def committed(self) -> None:
        self._undo.drop()

    def _use(self, late: bool, since: str = "") -> None:
        if late and not self._is_late and self._world.rank == 0 and not self._status.joiner:
            self._note(
                "the body computes or communicates after an optimizer has stepped (several optimizers, a closure, an "
                "optimizer that communicates): what they change is copied in every step, so that it can be taken back "
                f"after a fault{since}. That takes as much memory again as parameters and optimizer state"
            )
        self._is_late = late
