"""Whether and how this rank goes on in a world without some of its ranks, at the same global batch."""

from collections.abc import Collection

import torch
from torch.distributed.tensor import DTensor

from understudy.errors import UsageError
from understudy.foundation.ids import Rank
from understudy.groups.engines import Engines
from understudy.protocol.sharing_out import Reduction, SharingOut
from understudy.state.protected_state import Protected, parameters_of
from understudy.training.data.stateful_loader import LoaderData
from understudy.training.data.step_data import StepData
from understudy.training.data.step_loader import StepLoader
from understudy.training.degraded.accumulation import Accumulation
from understudy.training.step_inspector import StepInspector

Mesh = tuple[tuple[int, ...], ...]
"""For every replica the ranks that hold its shards, in their order. Empty: every rank holds everything, as under DDP.
None stands for a division of which no part can be left out."""


class DegradedMode:
    """Of one member. `accumulation` is None while the world is whole."""

    def __init__(self, engines: Engines, protected: Protected, inspector: StepInspector) -> None:
        self._engines, self._protected, self._inspector = engines, protected, inspector
        self._data: StepData | None = None
        self._share, self._tracked = (0, 1), False
        self._reduction: Reduction = "mean"
        self.accumulation: Accumulation | None = None

    def use(self, data: StepData | None, share: tuple[int, int], tracked: bool, reduction: Reduction) -> None:
        """The loop over the steps begins. `share`: (index, count) of this rank's part of each batch."""
        self._data, self._share, self._tracked, self._reduction = data, share, tracked, reduction

    def objection(self) -> str | None:
        """Why no rank can work on the batches of absent ranks, if so. It is a matter of the script: all ranks have the
        same, as soon as they have their first step behind them."""
        if self._data is None:
            return "the script does not give its data to job.protect(data=...)"
        if isinstance(self._data, LoaderData):
            return "the data is a loader that keeps its position: the batches of other ranks cannot be read from it"
        if isinstance(self._data, StepLoader) and (why := self._data.objection(self._share[1])) is not None:
            return why
        if self._tracked:
            return 'with rng="tracked" the random streams of an absent rank are not known'
        return self._engines.objection_to_parts() or self._inspector.objection()

    def replica(self, rank: int, size: int) -> tuple[Rank, ...]:
        """The ranks that hold one whole copy of the model together, this one among them. Empty: the world cannot do
        without any of its ranks."""
        if self.objection() is not None or self._share != (rank, size):
            return ()
        mesh = self._mesh()
        if mesh is None:
            return ()
        row = next((row for row in mesh if rank in row), ()) if mesh else (rank,)
        return tuple(map(Rank, row))

    def _mesh(self) -> Mesh | None:
        found = {
            _mesh_of(parameter) for module in self._protected.modules.values() for parameter in module.parameters()
        }
        found.discard(())
        if not found:
            return ()
        return found.pop() if len(found) == 1 else None

    def go_without(self, absent: Collection[int]) -> None:
        """From now on the batches of the shares `absent` are shared out (`protocol.sharing_out`); with none the world
        is whole. Every generation says it anew, after its regroup."""
        if not absent:
            self.accumulation = None
            return
        objection = self.objection()
        if objection is not None or self._data is None:
            raise UsageError(f"the batches of absent ranks cannot be shared out: {objection}")
        optimizers = (*self._protected.optimizers.values(), *self._protected.unnamed)
        self.accumulation = Accumulation(
            SharingOut(self._share[1], tuple(sorted(absent)), tuple(zip(*(self._mesh() or ()), strict=True))),
            self._share[0],
            data=self._data,
            engines=self._engines,
            parameters=[
                *(parameter for module in self._protected.modules.values() for parameter in module.parameters()),
                *(parameter for optimizer in optimizers for parameter in parameters_of(optimizer)),
            ],
            backward_passes=self._inspector.backward_passes,
            reduction=self._reduction,
        )


def _mesh_of(parameter: torch.Tensor) -> Mesh | None:
    if not isinstance(parameter, DTensor):
        return ()
    mesh, placements = parameter.device_mesh, parameter.placements
    if mesh.ndim != 2 or not placements[0].is_replicate() or not placements[1].is_shard():
        return None
    return tuple(tuple(row) for row in mesh.mesh.tolist())
