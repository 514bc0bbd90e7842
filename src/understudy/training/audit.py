"""Looks for state that the user forgot: schedulers, scalers, averages that were not given to job.protect()."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from understudy.state.manifest import Protected


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


def is_module(thing: Any) -> bool:
    return isinstance(thing, nn.Module)
