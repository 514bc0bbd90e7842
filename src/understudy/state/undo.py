"""Takes back what a body has done to the state, for bodies that compute on after an optimizer has stepped.

Where a backward pass follows an optimizer's step (a GAN, actor and critic, a closure), or an optimizer communicates, a
fault may come when part of the state has changed. Copies make that harmless: of what each optimizer changes, taken
right before its first step of the body, and of everything else that is protected, taken when the body begins. Module
buffers are the business of `buffers`. Copies of tensors reuse their memory from body to body.
"""

import copy
from collections.abc import Callable, Hashable
from typing import Any

import torch

from understudy.state.protected_state import Protected, local, parameters_of

_Restore = Callable[[], None]
_SIMPLE = (torch.Tensor, int, float, bool, str, type(None))


class Undo:
    """Call `begin` when a body begins, `keep` before each optimizer steps, and then either `put_back` or `drop`."""

    def __init__(self, protected: Protected) -> None:
        self._protected = protected
        self._memory: dict[Hashable, torch.Tensor] = {}
        self._restores: list[_Restore] = []
        self._kept: set[int] = set()

    @property
    def size(self) -> int:
        """Bytes of memory that the copies take."""
        return sum(kept.nbytes for kept in self._memory.values())

    def begin(self) -> None:
        """Schedulers, scalers, averages of weights and the options of parameter groups may change at any place."""
        self.drop()
        protected = self._protected
        for optimizer in protected.optimizers.values():
            for group in optimizer.param_groups:
                options = {key: value for key, value in group.items() if key != "params"}
                self._restores.append(_restore_entries(group, options, self._copies(options, id(group))))
        for name, module in protected.averages().items():
            for place, parameter in enumerate(module.parameters()):
                self._keep_tensor((name, place), parameter)
        for thing in protected.objects.values():
            self._restores.append(_restore_object(thing.load_state_dict, copy.deepcopy(thing.state_dict())))
        if protected.save is not None and protected.load is not None:
            self._restores.append(_restore_saved(protected.load, protected.saved_bytes(protected.save)))

    def keep(self, optimizer: torch.optim.Optimizer) -> None:
        """It is about to step. What the script's own functions save includes it, if they are all that there is."""
        if id(optimizer) in self._kept or self._protected.saves_alone:
            return
        self._kept.add(id(optimizer))
        parameters = parameters_of(optimizer)
        for place, parameter in enumerate(parameters):
            self._keep_tensor((id(optimizer), place), parameter)
        for place, (owner, state) in enumerate(list(optimizer.state.items())):
            self._restores.append(self._restore_state(optimizer, owner, state, place, parameters))
        self._restores.append(_forget_others(optimizer.state, list(optimizer.state)))

    def put_back(self) -> None:
        """As it was when the body began."""
        with torch.no_grad():
            for restore in self._restores:
                restore()
        self.drop()

    def drop(self) -> None:
        """The body counts, or is yet to begin."""
        self._restores.clear()
        self._kept.clear()

    def _keep_tensor(self, name: Hashable, tensor: torch.Tensor) -> None:
        kept = self._copy(name, tensor)
        self._restores.append(lambda: _write(tensor, kept))

    def _restore_state(
        self, optimizer: torch.optim.Optimizer, owner: Any, state: Any, place: int, parameters: list[torch.Tensor]
    ) -> _Restore:
        if not isinstance(state, dict) or not all(isinstance(value, _SIMPLE) for value in state.values()):
            memo: dict[int, Any] = {id(parameter): parameter for parameter in parameters}
            kept = copy.deepcopy(state, memo)  # at once, for one tensor may be in several lists (LBFGS)
            return lambda: optimizer.state.__setitem__(owner, kept)
        return _restore_entries(state, dict(state), self._copies(state, (id(optimizer), place)))

    def _copies(self, entries: dict[str, Any], of: Hashable) -> dict[str, Any]:
        return {
            key: self._copy((of, key), value) if isinstance(value, torch.Tensor) else copy.deepcopy(value)
            for key, value in entries.items()
        }

    def _copy(self, name: Hashable, tensor: torch.Tensor) -> torch.Tensor:
        present, kept = local(tensor), self._memory.get(name)
        if kept is None or kept.shape != present.shape or kept.dtype != present.dtype:
            self._memory[name] = kept = torch.empty_like(present)
        kept.copy_(present)
        return kept


def _write(tensor: torch.Tensor, kept: torch.Tensor) -> None:
    """Into whatever memory it has now: an optimizer may have given it another."""
    local(tensor).copy_(kept)


def _restore_entries(entries: dict[str, Any], originals: dict[str, Any], kept: dict[str, Any]) -> _Restore:
    """The same tensors with their former content, whatever took their place; entries that are new are gone."""

    def restore() -> None:
        for key in entries.keys() - originals.keys() - {"params"}:
            del entries[key]
        for key, value in kept.items():
            if isinstance(value, torch.Tensor):
                _write(originals[key], value)
            entries[key] = originals[key] if isinstance(value, torch.Tensor) else value

    return restore


def _restore_object(load_state_dict: Callable[[dict[str, Any]], object], kept: dict[str, Any]) -> _Restore:
    return lambda: (load_state_dict(kept), None)[1]


def _restore_saved(load: Callable[[Any], object], kept: torch.Tensor) -> _Restore:
    return lambda: Protected.load_bytes(load, kept)


def _forget_others(state: Any, known: list[Any]) -> _Restore:
    """What an optimizer made in this body for the first time."""

    def forget() -> None:
        for owner in [owner for owner in state if not any(owner is one for one in known)]:
            del state[owner]

    return forget
