"""Everything that a rank must hold to be that rank: parameters, buffers, optimizer state, and other stateful objects.

`Protected` is what the user registered. `inventory()` lists it as tensors with stable paths plus a small plain part;
two ranks whose inventories describe the same shards are twins.
"""

import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.parallel import DistributedDataParallel

from understudy.devices import in_use
from understudy.devices.memory import on_device
from understudy.state.digests import digest_text, number_of
from understudy.state.encoding import flatten, unflatten
from understudy.state.state_digests import BY_XXH3, StateDigests

SaveFunction = Callable[[Path], object]
"""Writes the script's own checkpoint to the path."""

PARAMETERS, _OPTIMIZER, _OBJECT, _FILE = "parameters", "optimizer", "object", "file"


@runtime_checkable
class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


@dataclass(slots=True)
class Inventory:
    """`tensors`: path -> local tensor, in one order for all twins. `plain`: everything that is not a tensor.
    `of_device`: paths of those that are in the memory of a device, or were where this is a copy of."""

    tensors: dict[str, torch.Tensor]
    plain: bytes
    of_device: frozenset[str] = frozenset()


@dataclass(slots=True)
class Protected:
    """What the user registered with `job.protect`."""

    modules: dict[str, nn.Module] = field(default_factory=dict)
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    objects: dict[str, Stateful] = field(default_factory=dict)
    save: SaveFunction | None = None
    load: SaveFunction | None = None
    carried: dict[str, Stateful] = field(default_factory=dict)
    """What a receiver gets as well, though it may differ from rank to rank: it is in no digest of what ranks hold."""
    unnamed: list[torch.optim.Optimizer] = field(default_factory=list)
    """Optimizers that are known only because they stepped; their state is the business of `save` and `load`."""
    digests: StateDigests = BY_XXH3
    """How ranks of this job take digests that they compare with each other."""

    @property
    def saves_alone(self) -> bool:
        """Are the script's own functions all that it has named?"""
        return self.save is not None and not self.modules and not self.optimizers

    def forget_gradients(self) -> None:
        """A step that was cut short leaves gradients behind, to which the next one would add, and a scaler that
        believes to have scaled them back already."""
        for optimizer in (*self.optimizers.values(), *self.unnamed):
            optimizer.zero_grad(set_to_none=True)
        self.forget_scaling()

    def forget_scaling(self) -> None:
        """Nothing has been scaled back yet in this attempt."""
        for thing in self.objects.values():
            if isinstance(thing, torch.amp.GradScaler):
                thing._per_optimizer_states.clear()

    # -- listing ------------------------------------------------------------------------------------------------------

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters and buffers (persistent or not) of every module, as local tensors."""
        for name, module in self.modules.items():
            for key, parameter in module.named_parameters():
                yield f"{PARAMETERS}/{name}/{key}", local(parameter)
            for key, buffer in module.named_buffers():
                yield f"{PARAMETERS}/{name}/{key}", local(buffer)

    def _named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, module in self.modules.items():
            for key, parameter in module.named_parameters():
                yield f"{PARAMETERS}/{name}/{key}", parameter

    def own_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Without buffers, as local tensors."""
        return ((path, local(parameter)) for path, parameter in self._named_parameters())

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

    def changed_before_fence(self, inventory: Inventory) -> set[str]:
        """Paths of what may change before the next fence: buffers, and whatever objects hold."""
        buffers = {
            f"{PARAMETERS}/{name}/{key}" for name, module in self.modules.items() for key, _ in module.named_buffers()
        }
        return buffers | {path for path in inventory.tensors if path.startswith(f"{_OBJECT}/")}

    def changed_beside_optimizers(self) -> list[str]:
        """Names of what a step changes by other means than a named optimizer: schedulers, scalers, averages of weights,
        and whatever the script's own functions save."""
        return [*self.objects, *self.averages(), *(["what save= writes"] if self.save is not None else [])]

    def averages(self) -> dict[str, nn.Module]:
        """Modules none of whose parameters a named optimizer steps: averages of weights, mostly."""
        stepped = {id(parameter) for optimizer in self.optimizers.values() for parameter in parameters_of(optimizer)}
        return {
            name: module
            for name, module in self.modules.items()
            if not any(id(parameter) in stepped for parameter in module.parameters())
        }

    def _paths_of_averages(self) -> frozenset[str]:
        """Where optimizers are named: else that cannot be told."""
        averages = self.averages() if self.optimizers else {}
        return frozenset(
            f"{PARAMETERS}/{name}/{key}"
            for name, module in averages.items()
            for key, _ in (*module.named_parameters(), *module.named_buffers())
        )

    def inventory(self, settled: bool = True) -> Inventory:
        """A thread may read what is in it later, as long as nothing is queued that changes it. Not `settled`: a device
        may have still to write it, and only what is queued behind that may read it."""
        if settled:
            in_use.settle()
        plain, loose = self._beside_tensors({name: thing.state_dict() for name, thing in self.carried.items()})
        tensors = {**dict(self.parameters()), **dict(self.optimizer_tensors()), **loose}
        if self.save is not None:
            tensors[f"{_FILE}/0"] = self.saved_bytes(self.save)
        return Inventory(tensors, plain, frozenset(path for path, tensor in tensors.items() if on_device(tensor)))

    def _beside_tensors(self, carried: dict[str, Any] | None = None) -> tuple[bytes, dict[str, torch.Tensor]]:
        """Options, objects and the like; and the tensors that objects hold."""
        loose: list[torch.Tensor] = []
        scalars = {path: value for path, value in self._optimizer_entries() if not isinstance(value, torch.Tensor)}
        groups = {name: group_options(optimizer) for name, optimizer in self.optimizers.items()}
        objects = {name: thing.state_dict() for name, thing in self.objects.items()}
        learns = {path: parameter.requires_grad for path, parameter in self._named_parameters()}
        state = {"scalars": scalars, "groups": groups, "objects": objects, "learns": learns}
        state |= {} if carried is None else {"carried": carried}
        plain = flatten(state, "state", loose)
        held = {f"{_OBJECT}/{place}": local(tensor) for place, tensor in enumerate(loose)}
        return msgspec.msgpack.encode(plain), held

    @staticmethod
    def saved_bytes(save: SaveFunction) -> torch.Tensor:
        with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
            path = Path(folder) / "state"
            save(path)
            return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)

    # -- installing ---------------------------------------------------------------------------------------------------

    def install(self, inventory: Inventory) -> None:
        """Take over a received inventory. Parameters and known optimizer tensors were written in place already. State
        that an optimizer has only here is dropped: it comes from a rehearsal, or from later steps."""
        loose = [tensor for path, tensor in inventory.tensors.items() if path.startswith(f"{_OBJECT}/")]
        plain = unflatten(msgspec.msgpack.decode(inventory.plain, strict=False), loose)
        parameters = {name: parameters_of(optimizer) for name, optimizer in self.optimizers.items()}
        for path in [path for path, _ in self._optimizer_entries()]:
            if path not in inventory.tensors and path not in plain["scalars"]:
                self._drop_optimizer(path, parameters)
        for path, value in (*inventory.tensors.items(), *plain["scalars"].items()):
            if path.startswith(f"{_OPTIMIZER}/"):
                self._install_optimizer(path, value, parameters)
        for name, groups in plain["groups"].items():
            for group, options in zip(self.optimizers[name].param_groups, groups, strict=True):
                update_options(group, options)
        for path, parameter in self._named_parameters():
            parameter.requires_grad_(plain["learns"].get(path, parameter.requires_grad))
        for name, state in plain["objects"].items():
            self.objects[name].load_state_dict(state)
        given = plain.get("carried", {})
        for name, thing in self.carried.items():
            if name in given:  # a neighbouring version may carry other things
                thing.load_state_dict(given[name])
        if self.load is not None:
            self.load_bytes(self.load, inventory.tensors[f"{_FILE}/0"])

    def _drop_optimizer(self, path: str, parameters: dict[str, list[torch.Tensor]]) -> None:
        _, name, place, key = path.split("/", 3)
        state, parameter = self.optimizers[name].state, parameters[name][int(place)]
        del state[parameter][key]
        if not state[parameter]:
            del state[parameter]  # some optimizers ask whether there is any

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
    def load_bytes(load: SaveFunction, content: torch.Tensor) -> None:
        with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
            path = Path(folder) / "state"
            path.write_bytes(bytes(content.numpy()))
            load(path)

    # -- comparing ----------------------------------------------------------------------------------------------------

    def units(self) -> dict[str, str]:
        """Path of a tensor -> the parameter whose state it is part of. A unit is held as a whole or not at all.

        Buffers and objects belong to none: where replicas keep their own (batch norm under DDP), they differ."""
        named = {
            id(parameter): f"{PARAMETERS}/{name}/{key}"
            for name, module in self.modules.items()
            for key, parameter in module.named_parameters()
        }
        units = {path: path for path in named.values()}
        if self.saves_alone:
            units[f"{_FILE}/0"] = f"{_FILE}/0"
        for name, optimizer in self.optimizers.items():
            for place, parameter in enumerate(parameters_of(optimizer)):
                unit = named.get(id(parameter), f"{_OPTIMIZER}/{name}/{place}")
                units |= {f"{_OPTIMIZER}/{name}/{place}/{key}": unit for key in optimizer.state.get(parameter, {})}
        return units

    def optimized_units(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Units that an optimizer changes, with their parameters."""
        known = {
            id(parameter): f"{PARAMETERS}/{name}/{key}"
            for name, module in self.modules.items()
            for key, parameter in module.named_parameters()
        }
        for optimizer in self.optimizers.values():
            for parameter in parameters_of(optimizer):
                if id(parameter) in known:
                    yield known[id(parameter)], parameter

    def replicated_units(self) -> dict[str, tuple[int, ...]]:
        """Units that DDP keeps equal, with the ranks on which it does: a proof that needs no bytes."""
        found: dict[str, tuple[int, ...]] = {}
        for name, module in self.modules.items():
            names = {id(parameter): f"{PARAMETERS}/{name}/{key}" for key, parameter in module.named_parameters()}
            for part in module.modules():
                if isinstance(part, DistributedDataParallel):
                    ranks = tuple(dist.get_process_group_ranks(part.process_group))
                    ignored = part.parameters_to_ignore
                    inner = (parameter for key, parameter in part.module.named_parameters() if key not in ignored)
                    found |= {names[id(parameter)]: ranks for parameter in inner}
        return found

    def holdings(self) -> dict[str, int]:
        """Unit -> a number that is equal on two ranks exactly when they hold the same bytes of it, and DDP keeps it
        equal on the same ranks.

        Equal bytes mean little before they are trained: see `training.learning`."""
        units, replicated = self.units(), self.replicated_units()
        shards = {
            path: f"{_offset(parameter)}{replicated.get(path, '')}"
            for name, module in self.modules.items()
            for key, parameter in module.named_parameters()
            if (path := f"{PARAMETERS}/{name}/{key}")
        }
        held: dict[str, bytearray] = {}
        saved = [(f"{_FILE}/0", self.saved_bytes(self.save))] if self.save is not None and self.saves_alone else []
        all_of_it = (*self.parameters(), *self.optimizer_tensors(), *saved)
        tensors = {path: tensor for path, tensor in all_of_it if path in units}
        for (path, tensor), digest in zip(tensors.items(), self.digests.each([*tensors.values()]), strict=True):
            described = f"{path}|{tensor.dtype}|{tuple(tensor.shape)}|{shards.get(path, '')}|".encode()
            held.setdefault(units[path], bytearray()).extend(described + digest)
        return {unit: number_of(bytes(content)) for unit, content in held.items()}

    def twin_key(self, holdings: dict[str, int]) -> str:
        """Equal on two ranks that hold the same bytes of everything."""
        described = [f"{unit}={number}" for unit, number in holdings.items()]
        for name, module in self.modules.items():
            described += [
                f"{name}/{key}|{buffer.dtype}|{tuple(buffer.shape)}" for key, buffer in module.named_buffers()
            ]
        described += [f"optimizer {name}" for name in self.optimizers]
        described += [f"object {name}" for name in self.objects]
        described += ["script's own save and load"] if self.save is not None else []
        return digest_text("\n".join(described).encode())[:16]

    def digest_parameters(self, rank_local: Collection[str] = (), by: StateDigests | None = None) -> str:
        """Of parameters and buffers. `rank_local`: paths of buffers that replicas do not share, which are left out.
        `by`: as the ledger wants it."""
        together = (by or self.digests).together
        if self.save is not None:
            return together([(_FILE, self.saved_bytes(self.save))])
        left_out = {*rank_local, *self._paths_of_averages()}
        return together((path, tensor) for path, tensor in self.parameters() if path not in left_out)

    def digest_buffers(self, rank_local: Collection[str], by: StateDigests | None = None) -> str | None:
        """Of those buffers alone; None when this rank has none of them."""
        own = [(path, tensor) for path, tensor in self.parameters() if path in rank_local] if rank_local else []
        return (by or self.digests).together(own) if own else None

    def digest_optimizer(self, by: StateDigests | None = None) -> str:
        """Of its state. Its options are among the extras."""
        return (by or self.digests).together(self.optimizer_tensors())

    def digest_extras(self, by: StateDigests | None = None) -> str | None:
        """Of what a script may change between steps as well: schedulers and the like, averages of weights, options of
        groups."""
        if self.saves_alone and not self.objects:
            return None  # `parameters` has it all
        plain, held = self._beside_tensors()
        averages = self._paths_of_averages()
        tensors = [*held.items(), *(item for item in self.parameters() if item[0] in averages)]
        digests = by or self.digests
        return digests.mark + digest_text(digests.together(tensors).encode() + plain)

    def digest_of_tensors(self) -> str:
        """Parameters, buffers and what optimizers keep of them; no objects, and no options."""
        return self.digests.together([*self.parameters(), *self.optimizer_tensors()])

    def digest_everything(self) -> str:
        inventory = self.inventory()
        return digest_text(self.digests.together(inventory.tensors.items()).encode() + inventory.plain)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's own part of a tensor, sharing its storage."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def group_options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [options_of(group) for group in optimizer.param_groups]


def options_of(group: dict[str, Any]) -> dict[str, Any]:
    """What a scheduler changes of a group: its learning rate and the like."""
    return {key: value for key, value in group.items() if key != "params"}


def update_options(group: dict[str, Any], options: dict[str, Any]) -> None:
    """In place where an option is a tensor: a compiled or captured optimizer reads it from where it was."""
    for key, value in options.items():
        present = group.get(key)
        if isinstance(present, torch.Tensor) and isinstance(value, torch.Tensor) and present.shape == value.shape:
            present.detach().copy_(value)
        else:
            group[key] = value


def _offset(tensor: torch.Tensor) -> str:
    if not isinstance(tensor, DTensor):
        return "whole"
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return f"{tuple(shape)}@{tuple(offset)}"
