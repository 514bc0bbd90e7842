"""What a script has, and what of it is protected: objects with state that it forgot, and the optimizers that it steps.

A wrapper (Accelerate's, Megatron's) or a container of several optimizers (torchtitan's) calls other optimizers, which
hold the state. The fence stands before those.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from understudy.errors import UsageError
from understudy.state.protected_state import Protected, parameters_of


def unprotected_state(names: Mapping[str, Any], protected: Protected) -> list[str]:
    """Names of objects with `state_dict` and `load_state_dict` that a swap would lose. What functions of the script's
    own save cannot be looked into."""
    if protected.saves_alone:
        return []
    known = {id(thing) for thing in _protected_things(protected)}
    forgotten = []
    for name, thing in names.items():
        if isinstance(thing, type | DataLoader) or name.startswith("__") or id(thing) in known:
            continue
        try:
            stateful = callable(getattr(thing, "state_dict", None)) and callable(
                getattr(thing, "load_state_dict", None)
            )
        except Exception:
            continue
        if stateful:
            forgotten.append(name)
    return sorted(forgotten)


def _protected_things(protected: Protected) -> Iterable[Any]:
    for module in protected.modules.values():
        yield from module.modules()
    yield from protected.optimizers.values()
    yield from protected.objects.values()


def optimizers_within(thing: Any) -> list[torch.optim.Optimizer]:
    """Those that it calls, if it is a wrapper or a container. A scheduler has an optimizer too, but steps none."""
    if isinstance(thing, torch.nn.Module) or not (_has_method(thing, "step") and _has_method(thing, "zero_grad")):
        return []
    inner = getattr(thing, "optimizers", None)
    inner = list(inner.values()) if isinstance(inner, Mapping) else inner
    found: list[Any] = list(inner) if isinstance(inner, list | tuple) else [getattr(thing, "optimizer", None)]
    deeper = [optimizers_within(one) or [one] for one in found]
    return [one for several in deeper for one in several if isinstance(one, torch.optim.Optimizer) and one is not thing]


def _has_method(thing: Any, name: str) -> bool:
    return callable(getattr(thing, name, None))


class Unprotected:
    """Looks at every optimizer that steps, the first time that it does."""

    def __init__(self, protected: Protected) -> None:
        self._protected = protected
        self._harmless: set[int] = set()

    def refuse(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """One that changes protected parameters, and is not protected itself: a replacement would not have its state,
        and ranks would not wait for each other before it changes something. A container changes nothing itself."""
        if id(optimizer) in self._harmless:
            return
        if optimizers_within(optimizer) or any(optimizer is known for known in self._protected.optimizers.values()):
            self._harmless.add(id(optimizer))
            return
        parameters = {id(part) for module in self._protected.modules.values() for part in module.parameters()}
        if any(id(parameter) in parameters for parameter in parameters_of(optimizer)):
            raise UsageError(
                f"an optimizer ({type(optimizer).__name__}) changes parameters of a protected module, but is not "
                "protected itself: give it to job.protect(optimizer=...)"
            )
        self._harmless.add(id(optimizer))
