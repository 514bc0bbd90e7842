"""What a checkpoint calls the things that are protected: names that do not depend on the world's size or on wrappers.

Names follow torch.distributed.checkpoint: `model.<name of the parameter>`, `optimizer.state.<name>.exp_avg`,
`optimizer.param_groups.0.lr`. What only Understudy reads is under a name of its own, without pickle.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.parallel import DistributedDataParallel

from understudy.errors import CheckpointError
from understudy.state.checkpoint.folders import key_of
from understudy.state.checkpoint.plan import OWN, PICKLE, Box
from understudy.state.encoding import flatten
from understudy.state.protected_state import Protected, group_options, parameters_of

Path = tuple[str | int, ...]

RANK_LOCAL: Path = (OWN, "keepsake")  # as checkpoints on disk call it
FILE: Path = (OWN, "file")

_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module"}  # of torch.compile and of activation checkpointing


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor under its name, the live one. `own`: it belongs to a rank and may differ from rank to rank without
    being wrong. `dtype`: PICKLE for a value that is for other readers only."""

    path: Path
    tensor: torch.Tensor
    own: bool = False
    aliases: tuple[Path, ...] = ()
    dtype: str = ""

    @property
    def key(self) -> str:
        return key_of(self.path)


# -- modules -----------------------------------------------------------------------------------------------------------


def module_entries(protected: Protected) -> Iterator[Entry]:
    for name, module in protected.modules.items():
        for parameter, names in _by_tensor(module.named_parameters(remove_duplicate=False), module):
            first, *further = ((name, each) for each in names)
            yield Entry(first, parameter, aliases=tuple(further))
        for buffer, names in _by_tensor(module.named_buffers(remove_duplicate=False), module):
            first, *further = ((name, each) for each in names)
            yield Entry(first, buffer, own=True, aliases=tuple(further))


def _by_tensor(named: Iterator[tuple[str, Any]], module: nn.Module) -> list[tuple[torch.Tensor, list[str]]]:
    found: dict[int, tuple[torch.Tensor, list[str]]] = {}
    for key, tensor in named:
        found.setdefault(id(tensor), (tensor, []))[1].append(_bare_name(module, key))
    return list(found.values())


def _bare_name(module: nn.Module, key: str) -> str:
    """Without what wrappers add, so that it is the same with and without them."""
    here: Any = module
    kept = []
    for part in key.split("."):
        if not (part in _WRAPPERS or (part == "module" and isinstance(here, DistributedDataParallel))):
            kept.append(part)
        here = getattr(here, part, None)
    return ".".join(kept)


# -- optimizers --------------------------------------------------------------------------------------------------------


def optimizer_labels(protected: Protected, name: str) -> list[str]:
    """What each parameter of an optimizer is called, in its order: its name in the module."""
    owners: dict[int, tuple[str, str]] = {}
    for module_name, module in protected.modules.items():
        for key, parameter in module.named_parameters():
            owners.setdefault(id(parameter), (module_name, _bare_name(module, key)))
    identities = [id(parameter) for parameter in parameters_of(protected.optimizers[name])]
    modules = {owners[identity][0] for identity in identities if identity in owners}
    labels = []
    for place, identity in enumerate(identities):
        owner = owners.get(identity)
        labels.append(f"#{place}" if owner is None else owner[1] if len(modules) == 1 else key_of(owner))
    return labels


def state_path(optimizer: str, label: str, key: str) -> Path:
    return (optimizer, "state", label, key)


def plain_path(kind: str, name: str) -> Path:
    """Of what is not a tensor; its tensors are beside it, counted."""
    return (OWN, kind, name, "plain")


def loose_path(kind: str, name: str, place: int) -> Path:
    return (OWN, kind, name, str(place))


def _optimizer_entries(protected: Protected) -> Iterator[Entry]:
    for name, optimizer in protected.optimizers.items():
        labels = optimizer_labels(protected, name)
        scalars: dict[str, dict[str, Any]] = {}
        for label, parameter in zip(labels, parameters_of(optimizer), strict=True):
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and isinstance(key, str):
                    yield Entry(state_path(name, label, key), value)
                else:
                    scalars.setdefault(label, {})[key] = value
        plain = {"groups": group_options(optimizer), "scalars": scalars}
        yield from _plain_entries("optimizers", name, plain)
        yield from _groups_for_others(name, optimizer, labels)


def _groups_for_others(name: str, optimizer: torch.optim.Optimizer, labels: list[str]) -> Iterator[Entry]:
    """The options of the groups once more, as torch.distributed.checkpoint has them: pickled."""
    first = 0
    for number, group in enumerate(optimizer.param_groups):
        names = labels[first : first + len(group["params"])]
        first += len(names)
        for key, value in {**group, "params": names}.items():
            path = (name, "param_groups", number, key)
            if isinstance(value, torch.Tensor):
                yield Entry(path, value, own=True)
            else:
                pickled = io.BytesIO()
                torch.save(value, pickled)
                yield Entry(path, bytes_as_tensor(pickled.getvalue()), own=True, dtype=PICKLE)


# -- the rest ----------------------------------------------------------------------------------------------------------


def _plain_entries(kind: str, name: str, value: Any) -> Iterator[Entry]:
    tensors: list[torch.Tensor] = []
    plain = msgspec.msgpack.encode(flatten(value, f"{kind}.{name}", tensors))
    yield Entry(plain_path(kind, name), bytes_as_tensor(plain), own=True)
    for place, tensor in enumerate(tensors):
        yield Entry(loose_path(kind, name, place), tensor, own=True)


def entries_of(protected: Protected, rank_local: bytes) -> Iterator[Entry]:
    """Everything that a checkpoint holds of this rank."""
    yield from module_entries(protected)
    yield from _optimizer_entries(protected)
    for name, thing in protected.objects.items():
        yield from _plain_entries("objects", name, thing.state_dict())
    if protected.save is not None:
        yield Entry(FILE, protected.saved_bytes(protected.save), own=True)
    if rank_local:
        yield Entry(RANK_LOCAL, bytes_as_tensor(rank_local), own=True)


def bytes_as_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def box_of(entry: Entry) -> Box | None:
    """Which part of the whole tensor this rank holds. None: nothing of it."""
    tensor = entry.tensor
    if not isinstance(tensor, DTensor):
        return (0,) * tensor.dim(), tuple(tensor.shape)
    if tensor.device_mesh.get_coordinate() is None or tensor.to_local().numel() == 0:
        return None
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if tuple(sizes) != tuple(tensor.to_local().shape):
        raise CheckpointError(f"{entry.key} is sharded in a way that is not known here: {tensor.placements}")
    return tuple(offsets), tuple(sizes)
