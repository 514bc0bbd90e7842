"""What one run of a step's body sees and may change on this rank before the step counts, and how that is put back.

Called by the kinds of steps (`steps`), which know when. Optimizers change state behind the fence, or with copies of
what they change (`late_fence`).
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from understudy.groups.engines import Engines
from understudy.state.buffers import ChangingBuffers, Remembered
from understudy.state.protected_state import Protected, options_of, update_options
from understudy.training.late_fence import LateFence
from understudy.training.rank_local.buffers import RankLocalBuffers
from understudy.training.rank_local.state import RankLocalState
from understudy.training.small_state import SmallState
from understudy.training.step_inspector import StepInspector


class Passes:
    """What DDP keeps of its last pass (`Engines.state_dict`), as it was where this rank would begin again: a step, a
    section, or the code after a step. A replacement begins there too."""

    def __init__(self, engines: Engines) -> None:
        self._engines, self._then = engines, engines.state_dict()

    def remember(self) -> None:
        self._then = self._engines.state_dict()

    def put_back(self) -> None:
        self._engines.load_state_dict(self._then)

    def state_dict(self) -> dict[str, Any]:
        return self._then

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._then = state
        self.put_back()


@dataclass(frozen=True, slots=True)
class Place:
    """What a host may change in a step and after it, as it was when the step began."""

    buffers: Sequence[Remembered]
    passes: dict[str, Any]
    small: bytes


class Body:
    """Of one member."""

    def __init__(
        self,
        *,
        protected: Protected,
        small: SmallState,
        engines: Engines,
        buffers: ChangingBuffers,
        inspector: StepInspector,
        rank_local: RankLocalState,
        rank_local_buffers: RankLocalBuffers,
        late_fence: LateFence,
    ) -> None:
        self.protected, self.engines, self.inspector, self.late_fence = protected, engines, inspector, late_fence
        self.small = small
        self._buffers, self._passes = buffers, Passes(engines)
        self._rank_local, self._rank_local_buffers = rank_local, rank_local_buffers
        self._objects: dict[str, Any] = {}
        self._settings: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._modes: list[tuple[nn.Module, bool]] = []

    def use(self, modules: Iterable[nn.Module]) -> None:
        """The loop over the steps begins: what is protected is known."""
        found = list(modules)
        self.engines.use(found)
        self._buffers.use(found)
        self._passes.remember()
        self.protected.carried |= {"passes": self._passes, "small": self.small}

    def watch(self) -> None:
        self.inspector.watch()

    def begin(self) -> None:
        """Before the random numbers of the step are seeded."""
        self.engines.waits.begin()
        self._buffers.remember()
        self._passes.remember()

    def begin_rank_local(self, step: int) -> None:
        """After they are."""
        self._rank_local.begin(step)
        self._rank_local_buffers.begin(step)

    def rehearse(self) -> None:
        self.watch()
        self._buffers.remember()

    def arrive(self, step: int) -> None:
        """At the fence."""
        self._rank_local.arrive(step)
        self._rank_local_buffers.arrive(step)

    def end(self) -> None:
        """The body was left, in whatever way."""
        self.inspector.finish()

    def settle(self, fetched: bool) -> bool:
        """One of the first bodies has run to its end: learn from it. Has everything lazy happened?"""
        self.inspector.learn(fetched)
        return self.engines.settle()

    def rehearsed(self, fetched: bool) -> bool:
        settled = self.settle(fetched)
        self._buffers.learn()
        return settled

    def committed(self) -> None:
        self.late_fence.committed()
        self._buffers.learn()
        self._passes.remember()

    def place(self) -> Place:
        """Of a step that has just begun."""
        return Place(self._buffers.remembered(), self._passes.state_dict(), self.small.read())

    def back_to(self, place: Place) -> None:
        """This step and what came after it do not count, though the host has done them."""
        self._buffers.put_back(place.buffers)
        self._passes.load_state_dict(place.passes)
        self.small.put(place.small)

    def put_back_buffers(self) -> None:
        """The attempt does not count: the forward pass may have changed some."""
        self._buffers.restore()
        self._passes.put_back()

    # -- between steps -------------------------------------------------------------------------------------------------

    def remember(self) -> None:
        """Before a section, which may have to run again: what is small, and what it is known to change."""
        self._buffers.remember()
        self._passes.remember()
        self._rank_local.remember()
        self._objects = {name: copy.deepcopy(thing.state_dict()) for name, thing in self.protected.objects.items()}
        self._settings = [(group, copy.deepcopy(options_of(group))) for group in self.small.groups()]
        known = (module for root in self.protected.modules.values() for module in root.modules())
        self._modes = [(module, module.training) for module in known]

    def put_back(self) -> None:
        self._buffers.restore()
        self._buffers.remember()
        self._passes.put_back()
        self._rank_local.put_back()
        for name, state in self._objects.items():
            self.protected.objects[name].load_state_dict(copy.deepcopy(state))
        for group, settings in self._settings:
            update_options(group, copy.deepcopy(settings))
        for module, training in self._modes:  # an evaluation that was cut short has not come to its `train()`
            module.training = training

    def forget(self) -> None:
        """The section is over."""
        self._objects, self._settings, self._modes = {}, [], []
        self._passes.remember()
