"""Copies of this rank's state that twins compare, and to which it can go back.

Every so many steps the rank tells a digest of its parameters and of their optimizer state, and keeps a copy of
everything. Once all twins are known to have agreed on a state its copy is kept and older ones are dropped: there are
two at most for any length of time, in plain memory.
"""

from collections.abc import Callable

from understudy.foundation.ids import StepNumber
from understudy.state.peer_memory.snapshots import bring_back
from understudy.state.protected_state import Inventory, Protected

_MOST = 3  # should the news of an agreement be late, the newest ones stay, and the one that was agreed on


class DivergenceSnapshots:
    """`every`: steps between two comparisons; 0 is never. `agreed`: the newest state on which all twins agreed."""

    def __init__(self, every: int, agreed: Callable[[], StepNumber | None]) -> None:
        self.every = every
        self._agreed = agreed
        self._copies: dict[int, Inventory] = {}

    def due(self, holds: int) -> bool:
        return self.every > 0 and holds % self.every == 0

    def digest(self, protected: Protected) -> str:
        """Of what twins have in common; buffers and objects may differ between them."""
        units = protected.units()
        tensors = (*protected.parameters(), *protected.optimizer_tensors())
        return protected.digests.together((path, tensor) for path, tensor in tensors if path in units)

    def take(self, protected: Protected, holds: int) -> None:
        inventory = protected.inventory()
        clones = {path: tensor.to("cpu", copy=True) for path, tensor in inventory.tensors.items()}
        self._copies[holds] = Inventory(clones, inventory.plain, inventory.of_device)
        self._forget()

    def _forget(self) -> None:
        agreed = self._agreed()
        newest = sorted(self._copies)[-(_MOST - 1) :]
        self._copies = {
            holds: copy
            for holds, copy in self._copies.items()
            if holds == agreed or (holds in newest and holds > (agreed or -1))
        }

    @property
    def kept(self) -> StepNumber | None:
        agreed = self._agreed()
        return agreed if agreed in self._copies else None

    def forget_after(self, holds: int) -> None:
        """Later states are not trusted."""
        self._copies = {earlier: kept for earlier, kept in self._copies.items() if earlier <= holds}

    def go_back(self, protected: Protected, holds: int) -> None:
        """Put the copy in the place of the present state. It stays a copy."""
        bring_back(protected, self._copies[holds])
        self.forget_after(holds)
