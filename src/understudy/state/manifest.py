"""Everything that a rank must hold to be that rank: parameters, buffers, optimizer state, and other stateful objects.

`Protected` is what the user registered. `inventory()` lists it as tensors with stable paths plus a small plain part;
two ranks whose inventories describe the same shards are twins.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from understudy.state.digests import digest_tensors, digest_text
from understudy.state.encoding import flatten, unflatten

SaveFunction = Callable[[Path], object]
"""Writes the script's own checkpoint to the path."""

_PARAMETERS, _OPTIMIZER, _OBJECT, _FILE = "parameters", "optimizer", "object", "file"


@runtime_checkable
class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


@dataclass(slots=True)
class Inventory:
    """`tensors`: path -> local tensor, in one order for all twins. `plain`: everything that is not a tensor."""

    tensors: dict[str, torch.Tensor]
    plain: bytes


@dataclass(slots=True)
class Protected:
    """What the user registered with `job.protect`."""

    modules: dict[str, nn.Module] = field(default_factory=dict)
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    objects: dict[str, Stateful] = field(default_factory=dict)
    save: SaveFunction | None = None
    load: SaveFunction | None = None

    # -- listing ------------------------------------------------------------------------------------------------------

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters and buffers (persistent or not) of every module, as local tensors."""
        for name, module in self.modules.items():
            for key, parameter in module.named_parameters():
                yield f"{_PARAMETERS}/{name}/{key}", local(parameter)
            for key, buffer in module.named_buffers():
                yield f"{_PARAMETERS}/{name}/{key}", local(buffer)

    def optimizer_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for path, value in self._optimizer_entries():
            if isinstance(value, torch.Tensor):
                yield path, local(value)

    def _optimizer_entries(self) -> Iterator[tuple[str, Any]]:
        for name, optimizer in self.optimizers.items():
            for place, parameter in enumerate(parameters_of(optimizer)):
                state = optimizer.state.get(parameter, {})
                for key in sorted(state):
                    yield f"{_OPTIMIZER}/{name}/{place}/{key}", state[key]

    def inventory(self) -> Inventory:
        tensors = dict(self.parameters())
        tensors.update(self.optimizer_tensors())
        loose: list[torch.Tensor] = []
        scalars = {path: value for path, value in self._optimizer_entries() if not isinstance(value, torch.Tensor)}
        groups = {name: _group_options(optimizer) for name, optimizer in self.optimizers.items()}
        objects = {name: thing.state_dict() for name, thing in self.objects.items()}
        plain = flatten({"scalars": scalars, "groups": groups, "objects": objects}, "state", loose)
        for place, tensor in enumerate(loose):
            tensors[f"{_OBJECT}/{place}"] = local(tensor)
        if self.save is not None:
            tensors[f"{_FILE}/0"] = self._saved_bytes(self.save)
        return Inventory(tensors, msgspec.msgpack.encode(plain))

    @staticmethod
    def _saved_bytes(save: SaveFunction) -> torch.Tensor:
        with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
            path = Path(folder) / "state"
            save(path)
            return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)

    # -- installing ---------------------------------------------------------------------------------------------------

    def install(self, inventory: Inventory) -> None:
        """Take over a received inventory. Parameters and known optimizer tensors were written in place already."""
        loose = [tensor for path, tensor in inventory.tensors.items() if path.startswith(f"{_OBJECT}/")]
        plain = unflatten(msgspec.msgpack.decode(inventory.plain, strict=False), loose)
        parameters = {name: parameters_of(optimizer) for name, optimizer in self.optimizers.items()}
        for path, value in (*inventory.tensors.items(), *plain["scalars"].items()):
            if path.startswith(f"{_OPTIMIZER}/"):
                self._install_optimizer(path, value, parameters)
        for name, groups in plain["groups"].items():
            for group, options in zip(self.optimizers[name].param_groups, groups, strict=True):
                group.update(options)
        for name, state in plain["objects"].items():
            self.objects[name].load_state_dict(state)
        if self.load is not None:
            self._load_bytes(self.load, inventory.tensors[f"{_FILE}/0"])

    def _install_optimizer(self, path: str, value: Any, parameters: dict[str, list[torch.Tensor]]) -> None:
        _, name, place, key = path.split("/", 3)
        parameter = parameters[name][int(place)]
        state = self.optimizers[name].state[parameter]
        present = state.get(key)
        if isinstance(value, torch.Tensor):
            if isinstance(present, torch.Tensor) and local(present).data_ptr() == value.data_ptr():
                return
            if isinstance(parameter, DTensor) and value.shape == local(parameter).shape:
                value = DTensor.from_local(value, parameter.device_mesh, parameter.placements, run_check=False)
        state[key] = value

    @staticmethod
    def _load_bytes(load: SaveFunction, content: torch.Tensor) -> None:
        with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
            path = Path(folder) / "state"
            path.write_bytes(bytes(content.numpy()))
            load(path)

    # -- comparing ----------------------------------------------------------------------------------------------------

    def twin_key(self) -> str:
        """Equal on two ranks exactly when they hold the same shards of the same tensors."""
        described = [
            f"{name}/{key}|{value.dtype}|{tuple(value.shape)}|{_offset(value)}"
            for name, module in self.modules.items()
            for key, value in (*module.named_parameters(), *module.named_buffers())
        ]
        described += [f"optimizer {name}" for name in self.optimizers]
        described += [f"object {name}" for name in self.objects]
        described += ["script's own save and load"] if self.save is not None else []
        return digest_text("\n".join(described).encode())[:16]

    def digest_parameters(self) -> str:
        if self.save is not None:
            return digest_tensors([(_FILE, self._saved_bytes(self.save))])
        return digest_tensors(self.parameters())

    def digest_optimizer(self) -> str:
        inventory = self.inventory() if self.objects else None
        plain = inventory.plain if inventory else repr([_group_options(o) for o in self.optimizers.values()]).encode()
        tensors = list(self.optimizer_tensors())
        if inventory:
            tensors += [item for item in inventory.tensors.items() if item[0].startswith(f"{_OBJECT}/")]
        return digest_text(digest_tensors(tensors).encode() + plain)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's own part of a tensor, sharing its storage."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _group_options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def _offset(tensor: torch.Tensor) -> str:
    if not isinstance(tensor, DTensor):
        return "whole"
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return f"{tuple(shape)}@{tuple(offset)}"
