"""Puts a durable checkpoint into live state, of the same or of another world size, without communication.

Every rank reads what it needs. Parameters, buffers and optimizer tensors that exist keep their storage; optimizer state
that does not exist yet is made. What belongs to a rank (its buffers where they differ, schedulers, what the script's
own function saved) goes to the same rank; in a world of another size rank r takes that of rank r modulo the old size,
and this is told.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.distributed.tensor import DTensor

from understudy.errors import CheckpointError
from understudy.state.checkpoint.dcp_format import CheckpointReader
from understudy.state.checkpoint.folders import key_of
from understudy.state.checkpoint.names import (
    FILE,
    RANK_LOCAL,
    loose_path,
    module_entries,
    optimizer_labels,
    plain_path,
    state_path,
)
from understudy.state.checkpoint.plan import OWN
from understudy.state.digests import tensor_bytes
from understudy.state.encoding import flatten, tensors_in, unflatten
from understudy.state.protected_state import Protected, Stateful, parameters_of

_NAMED = 5  # at most that many names in a note


@dataclass(frozen=True, slots=True)
class Loaded:
    """`step`: the next one to be run. `world_size`: of the world that saved. `rank_local`: as it was given to `begin`.
    `notes`: what is not as it was, in words."""

    step: int
    world_size: int
    rank_local: bytes
    notes: tuple[str, ...]


def load_checkpoint(path: Path, protected: Protected, *, rank: int, world_size: int) -> Loaded:
    """Raises CheckpointError if the checkpoint is not whole, damaged where this rank reads it, or does not fit. Nothing
    has changed then; but if the disk fails after all files were checked, or an object or the script's own function does
    not take its state, a part of it has."""
    return _Loading(Path(path), protected, rank, world_size).run()


class _Loading:
    def __init__(self, path: Path, protected: Protected, rank: int, world_size: int) -> None:
        self._reader = CheckpointReader(path)
        self._protected = protected
        saved = len(self._reader.parts)
        self._rank, self._world_size, self._saved_by = rank, world_size, saved
        self._source = self._reader.parts[rank if world_size == saved else rank % saved]
        self._into: dict[str, torch.Tensor] = {}
        self._varies = {key for part in self._reader.parts for key in part.elsewhere}
        self._differing: dict[str, None] = {}  # those of them that another rank's bytes are taken for, in order
        self._state_keys: dict[tuple[str, str], list[str]] = {}
        for stored in (each for part in self._reader.parts for each in part.stored):
            match stored.path:
                case (str(name), "state", str(label), str(key)) if name in protected.optimizers:
                    keys = self._state_keys.setdefault((name, label), [])
                    if key not in keys:
                        keys.append(key)

    def run(self) -> Loaded:
        """First every place is found into which something will be read, then it is read, then the rest is told."""
        protected = self._protected
        optimizers = [self._find_optimizer(name) for name in protected.optimizers]
        objects = {name: self._find_plain("objects", name, thing) for name, thing in protected.objects.items()}
        for entry in module_entries(protected):
            self._add(entry.key, entry.tensor, own=entry.own)
        file = self._fresh(key_of(FILE)) if protected.load is not None else None
        rank_local = self._fresh(key_of(RANK_LOCAL)) if self._stored_as(key_of(RANK_LOCAL)) else None
        self._reader.read(self._into)
        for found in optimizers:
            found.install()
        for name, state in objects.items():
            self._take(name, partial(protected.objects[name].load_state_dict, state))
        if protected.load is not None and file is not None:
            self._take("load=", partial(protected.load_bytes, protected.load, file))
        content = b"" if rank_local is None else bytes(tensor_bytes(rank_local))
        return Loaded(self._source.step, self._saved_by, content, tuple(self._notes()))

    def _take(self, name: str, load: Callable[[], object]) -> None:
        try:
            load()
        except Exception as error:
            raise CheckpointError(f"{name} did not take its state of {self._reader.path.name}: {error}") from error

    def _notes(self) -> Iterator[str]:
        if self._differing:
            names = ", ".join(list(self._differing)[:_NAMED])
            more = f" and {len(self._differing) - _NAMED} more" if len(self._differing) > _NAMED else ""
            yield (
                f"rank {self._rank} of {self._world_size} took what differs from rank to rank from rank "
                f"{self._source.rank} of {self._saved_by}: {names}{more}"
            )
        here = {*self._protected.modules, *self._protected.optimizers, *self._protected.objects}
        paths = [stored.path for part in self._reader.parts for stored in part.stored]
        there = {str(path[2] if path[:2] == (OWN, "objects") else path[0]) for path in paths} - {OWN}
        if there - here:
            yield f"not protected here, and not taken: {', '.join(sorted(there - here))}"

    # -- finding ------------------------------------------------------------------------------------------------------

    def _stored_as(self, key: str, *, own: bool = True) -> str | None:
        """Under which name this rank's bytes of `key` are stored, if they are."""
        stored = self._source.elsewhere.get(key, key)
        if self._world_size != self._saved_by and key in self._varies:
            if not own:
                raise CheckpointError(
                    f"ranks held other bytes under the same name {key} (stages or experts that are named alike); such "
                    f"a checkpoint can only be loaded by a world of {self._saved_by}, not of {self._world_size}"
                )
            self._differing[key] = None
        return stored if self._reader.described(stored) else None

    def _add(self, key: str, tensor: torch.Tensor, *, own: bool) -> None:
        """This tensor will be overwritten."""
        stored = self._stored_as(key, own=own)
        if stored is None and tensor.numel():
            raise CheckpointError(f"{self._reader.path.name} has no {key}")
        self._into[stored or key] = tensor

    def _fresh(self, key: str, like: torch.Tensor | None = None) -> torch.Tensor:
        """New memory for what is stored under `key`; only for this rank's part if that is what `like` is."""
        stored = self._stored_as(key)
        described = self._reader.described(stored) if stored else None
        if stored is None or described is None:
            raise CheckpointError(f"{self._reader.path.name} has no {key}")
        self._into[stored] = _empty(described.size, described.properties.dtype, like)
        return self._into[stored]

    def _find_plain(self, kind: str, name: str, live: Stateful | None = None) -> Any:
        """What was flattened, whole again; its tensors are filled later. Sharded ones need a live one beside them,
        which says what this rank's part is."""
        key = key_of(plain_path(kind, name))
        tensor = self._fresh(key)
        self._reader.read({stored: self._into.pop(stored) for stored in [self._stored_as(key) or key]})
        plain = msgspec.msgpack.decode(bytes(tensor_bytes(tensor)), strict=False)
        present: list[torch.Tensor] = []
        if live is not None:
            flatten(live.state_dict(), name, present)
        likes = chain(present, repeat(None))
        keys = (key_of(loose_path(kind, name, place)) for place in range(tensors_in(plain)))
        return unflatten(plain, [self._fresh(key, like) for key, like in zip(keys, likes, strict=False)])

    def _find_optimizer(self, name: str) -> "_FoundOptimizer":
        optimizer = self._protected.optimizers[name]
        plain = self._find_plain("optimizers", name)
        if len(plain["groups"]) != len(optimizer.param_groups):
            raise CheckpointError(f"{name} has {len(optimizer.param_groups)} groups here, {len(plain['groups'])} there")
        if plain["scalars"] and key_of(plain_path("optimizers", name)) in self._differing:
            raise CheckpointError(f"{name} keeps numbers that differ from rank to rank; they fit no other world size")
        found = _FoundOptimizer(optimizer, plain["groups"], [])
        labels = iter(optimizer_labels(self._protected, name))
        for group, options in zip(optimizer.param_groups, plain["groups"], strict=True):
            counts_on_device = bool(options.get("capturable") or options.get("fused"))
            for parameter, label in zip(group["params"], labels, strict=False):
                state = dict(plain["scalars"].get(label, {}))
                present = optimizer.state.get(parameter, {})
                for key in self._state_keys.get((name, label), ()):
                    device = parameter.device if key != "step" or counts_on_device else torch.device("cpu")
                    path = state_path(name, label, key)
                    state[key] = self._find_state(key_of(path), parameter, present.get(key), device)
                found.states.append(state)
        return found

    def _find_state(self, key: str, parameter: torch.Tensor, present: Any, device: torch.device) -> torch.Tensor:
        """The tensor that is there if it fits, else a new one."""
        stored = self._stored_as(key, own=False)
        described = self._reader.described(stored) if stored else None
        if stored is None or described is None:
            raise CheckpointError(f"{self._reader.path.name} has no {key}")
        fits = isinstance(present, torch.Tensor) and present.shape == described.size
        if not fits or present.dtype != described.properties.dtype:
            present = _empty(described.size, described.properties.dtype, parameter, device)
        self._into[stored] = present
        tensor: torch.Tensor = present
        return tensor


@dataclass(frozen=True, slots=True)
class _FoundOptimizer:
    """`states`: of each parameter, in the optimizer's order."""

    optimizer: torch.optim.Optimizer
    groups: list[dict[str, Any]]
    states: list[dict[str, Any]]

    def install(self) -> None:
        for parameter, state in zip(parameters_of(self.optimizer), self.states, strict=True):
            if state or parameter in self.optimizer.state:
                present = self.optimizer.state[parameter]
                present.clear()
                present.update(state)
        for group, options in zip(self.optimizer.param_groups, self.groups, strict=True):
            for key, value in options.items():
                present = group.get(key)
                if isinstance(present, torch.Tensor) and isinstance(value, torch.Tensor):
                    present.copy_(value)  # a script that changes a learning rate in place holds this very tensor
                else:
                    group[key] = value


def _empty(
    shape: torch.Size, dtype: torch.dtype, like: torch.Tensor | None, device: torch.device | None = None
) -> torch.Tensor:
    if isinstance(like, DTensor) and like.shape == shape:
        part = torch.empty_like(like.to_local(), dtype=dtype, requires_grad=False)
        return DTensor.from_local(
            part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )
    if like is not None and like.shape == shape:  # the same layout in memory, too
        return torch.empty_like(like, dtype=dtype, device=device or torch.device("cpu"), requires_grad=False)
    return torch.empty(shape, dtype=dtype, device=device)
