"""Whether and how this rank goes on in a world without some of its ranks, at the same global batch."""

from collections.abc import Collection

import torch
from torch.distributed.tensor import DTensor

from understudy.errors import UsageError
from understudy.groups.engines import Engines
from understudy.protocol.sharing_out import Reduction, SharingOut
from understudy.state.manifest import Protected, parameters_of
from understudy.training.data import StepData
from understudy.training.habits import Habits
from understudy.training.loader import LoaderData
from understudy.training.parts import Parts


class Degrading:
    """`share`: (index, count) of this rank's part of each batch. `parts` is None while the world is whole."""

    def __init__(
        self,
        *,
        data: StepData | None,
        share: tuple[int, int],
        tracked: bool,
        reduction: Reduction,
        engines: Engines,
        protected: Protected,
        habits: Habits,
    ) -> None:
        self._data, self.share, self._tracked, self._reduction = data, share, tracked, reduction
        self._engines, self._protected, self._habits = engines, protected, habits
        self.parts: Parts | None = None

    def objection(self) -> str | None:
        """Why nobody can work on the batches of absent ranks, if so. It is a matter of the script: all ranks have the
        same, as soon as they have their first step behind them."""
        if self._data is None:
            return "the script does not give its data to job.protect(data=...)"
        if isinstance(self._data, LoaderData):
            return "the data is a loader that keeps its position: the batches of other ranks cannot be read from it"
        if self._tracked:
            return 'with rng="tracked" nobody knows the random streams of an absent rank'
        return self._engines.objection_to_parts() or self._habits.objection()

    def replica(self, rank: int, size: int) -> tuple[int, ...]:
        """The ranks that hold one whole copy of the model together, this one among them. Empty: the world cannot do
        without any of its ranks."""
        if self.objection() is not None or self.share != (rank, size):
            return ()
        found = {_row(parameter) for module in self._protected.modules.values() for parameter in module.parameters()}
        found.discard(None)  # whole on every rank, as under DDP
        if not found:
            return (rank,)
        row = found.pop()
        return row if row is not None and not found else ()

    def go_without(self, absent: Collection[int], lanes: Collection[Collection[int]] = ()) -> None:
        """From now on the batches of the shares `absent` are shared out (`protocol.sharing_out`); with none the world
        is whole. Every generation says it anew, after its regroup."""
        if not absent:
            self.parts = None
            return
        objection = self.objection()
        if objection is not None or self._data is None:
            raise UsageError(f"the batches of absent ranks cannot be shared out: {objection}")
        optimizers = (*self._protected.optimizers.values(), *self._protected.unnamed)
        self.parts = Parts(
            SharingOut(self.share[1], tuple(sorted(absent)), tuple(tuple(lane) for lane in lanes)),
            self.share[0],
            data=self._data,
            engines=self._engines,
            parameters=[
                *(parameter for module in self._protected.modules.values() for parameter in module.parameters()),
                *(parameter for optimizer in optimizers for parameter in parameters_of(optimizer)),
            ],
            backward_passes=self._habits.backward_passes,
            reduction=self._reduction,
        )


def _row(parameter: torch.Tensor) -> tuple[int, ...] | None:
    """The ranks over which a parameter is sharded, this one among them; those with its replicas do not count. None: it
    is not sharded. Empty: in a way that nobody could do without."""
    if not isinstance(parameter, DTensor):
        return None
    mesh, placements = parameter.device_mesh, parameter.placements
    if mesh.ndim != 2 or not placements[0].is_replicate() or not placements[1].is_shard():
        return ()
    coordinate = mesh.get_coordinate()
    return tuple(mesh.mesh[coordinate[0]].tolist()) if coordinate is not None else ()
