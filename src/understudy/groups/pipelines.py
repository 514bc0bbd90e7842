"""Pipelines of torch.distributed.pipelining: find them, and make them forget a step that was cut short.

torch has no reset for a schedule that was left by an exception, so this knows what stages and schedules keep between
the microbatches of one step. Written against torch 2.15; a test trains on after a cut in every schedule.
"""

import gc
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed.pipelining.schedules import _PipelineSchedule
    from torch.distributed.pipelining.stage import _PipelineStageBase

_STAGE_KEEPS = ("backward_state", "dw_runner", "bwd_cache")
_SCHEDULE_KEEPS = (
    *("_internal_losses", "backward_counter", "fwd_recv_ops", "bwd_recv_ops"),
    *("unshard_ops", "unsharded_stages", "_deferred_stages", "_finalized_stages"),
)


class Pipelines:
    """All stages and schedules of this process. They are no modules, so the script need not name them: they are found
    where Python keeps its objects."""

    def __init__(self) -> None:
        self._stages: list[_PipelineStageBase] = []
        self._schedules: list[_PipelineSchedule] = []
        if "torch.distributed.pipelining" in sys.modules:
            self._find()

    def _find(self) -> None:
        from torch.distributed.pipelining.schedules import _PipelineSchedule
        from torch.distributed.pipelining.stage import _PipelineStageBase

        for thing in gc.get_objects():
            if isinstance(thing, _PipelineStageBase):
                self._stages.append(thing)
            elif isinstance(thing, _PipelineSchedule):
                self._schedules.append(thing)

    @property
    def exist(self) -> bool:
        return bool(self._stages)

    def forget_iteration(self) -> None:
        """No microbatch is under way any more."""
        for stage in self._stages:
            stage._gradient_reduction_handle = None  # `clear_runtime_states` would wait for it, and its peers are gone
            stage.clear_runtime_states()
            for infos in (*stage.args_recv_info.values(), *stage.grad_recv_info.values()):
                for info in infos:
                    info.buffer = None
            _clear(stage, _STAGE_KEEPS)
        for schedule in self._schedules:
            _clear(schedule, _SCHEDULE_KEEPS)


def _clear(owner: Any, names: tuple[str, ...]) -> None:
    for name in names:
        if hasattr(owner, name):
            getattr(owner, name).clear()
