"""What each engine needs around a fault: a clean slate after an aborted step, and equal lazy state on a joiner.

DDP lays its buckets out again after the first step that uses it (with static_graph=True after the second: it does not
look at the order of gradients before). A joiner has run one in a rehearsal, in a world of one; which layout all have is
then compared and made equal (`groups.buckets`). FSDP2 has a public reset for aborted iterations. A pipeline stage
forgets the microbatches that were on their way.
"""

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from understudy.errors import UsageError
from understudy.groups.buckets import BucketLayout, choose
from understudy.groups.pipelines import Pipelines
from understudy.groups.waiting import GradientWaits
from understudy.groups.world import World

Show = Callable[[dist.ProcessGroup, str, bytes], Iterable[bytes]]
"""Show something to a group, under a name; what each of its ranks shows, the lowest first."""


Switches = list[tuple[Any, str, bool]]
"""Attributes of engines: whose, which, and what it was."""


class Engines:
    """The engines inside the protected modules, and the pipelines that run them."""

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        self._ddp: list[DistributedDataParallel] = []
        self._buckets: list[BucketLayout] = []
        self._fsdp_roots: list[FSDPModule] = []
        self.waits = GradientWaits()
        self._steps = 0  # until everything lazy has happened
        self._settling = False  # a step has ended, and not all that is lazy has happened yet
        self.use(modules)

    def use(self, modules: Iterable[nn.Module]) -> None:
        """Look for engines in these as well, and for pipelines that run them."""
        self._pipelines = Pipelines()
        for module in modules:
            self._find(module)

    def _find(self, module: nn.Module) -> None:
        if isinstance(module, DistributedDataParallel):
            _refuse_hooks_with_state(module)
            self._ddp.append(module)
            self._buckets.append(BucketLayout(module))
            self.waits.watch(module)
        elif isinstance(module, FSDPModule):
            self._fsdp_roots.append(module)
        else:
            for child in module.children():
                self._find(child)

    def prepare_sandbox(self, world: World) -> None:
        """DDP's backward needs collectives that return tensors: its groups become worlds of one."""
        for ddp in self._ddp:
            world.be_alone(ddp.process_group, unique=_fresh_number())

    def settle(self) -> bool:
        """After a step: what is lazy happens now, on all ranks alike (a collective for DDP). Was that all of it? An
        engine that the body has not used yet follows in the step that uses it."""
        self._settling = True
        for buckets in self._buckets:
            buckets.settle()
        self._settling = False
        self._steps += 1
        return self._steps > any(ddp.static_graph for ddp in self._ddp)

    def reset(self, show: Show, trained: bool) -> None:
        """Start equal on all ranks. Called after every regroup by all ranks. `trained`: what this rank has is that of
        the state with which all go on."""
        seen: Counter[str] = Counter()
        for buckets in self._buckets:
            if self._settling:
                buckets.settle_alone()
            name = buckets.group.group_name
            own = msgspec.structs.replace(buckets.known, trained=trained and buckets.known.trained)
            buckets.adopt(choose(show(buckets.group, f"buckets-{seen[name]}", own.encode())))
            seen[name] += 1
        self._settling = False
        self.forget_iteration()

    def add_up_only(self, only: bool) -> None:
        """While `only`, every replica adds up its own gradients, and they are averaged over replicas later.

        Shards are still summed up within a replica (FSDP2 could leave that out too, but would then keep gradients of
        whole parameters). DDP's buffers are made equal in the pass that averages."""
        for ddp in self._ddp:
            ddp.require_backward_grad_sync = ddp.require_forward_param_sync = not only
        for root in self._fsdp_roots:
            root.set_requires_all_reduce(not only)

    def switches(self) -> Switches:
        """Which passes communicate, as `no_sync` and the like have set it."""
        found: Switches = [
            (ddp, name, getattr(ddp, name))
            for ddp in self._ddp
            for name in ("require_backward_grad_sync", "require_forward_param_sync")
        ]
        for root in self._fsdp_roots:
            for module in root.modules():  # type: ignore[attr-defined]
                if isinstance(module, FSDPModule) and (group := module._get_fsdp_state()._fsdp_param_group) is not None:
                    found += [(group, name, getattr(group, name)) for name in ("reduce_grads", "all_reduce_grads")]
        return found

    def state_dict(self) -> dict[str, Any]:
        """What DDP keeps of its last pass: whether the next one makes buffers equal first. After a pass without
        gradients it does not."""
        return {"makes_equal": [ddp.require_forward_param_sync for ddp in self._ddp]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for ddp, makes_equal in zip(self._ddp, state["makes_equal"], strict=True):
            ddp.require_forward_param_sync = makes_equal

    def objection_to_parts(self) -> str | None:
        """Why a step cannot be done in parts, if it cannot."""
        if self._pipelines.exist:
            return "a pipeline's schedule runs the backward passes, so that parts of a step cannot be weighted"
        if any(ddp.static_graph for ddp in self._ddp):
            return (
                "DDP with static_graph=True changes its buckets after a later step: not all ranks would have the same"
            )
        if not self._ddp and not self._fsdp_roots:
            return (
                "no protected module is in DDP or FSDP2: how gradients are averaged, and over how many ranks, "
                "is not known"
            )
        return None

    def forget_iteration(self) -> None:
        """After a step that was cut short: parameters are in their shards again, and no microbatch is under way."""
        for root in self._fsdp_roots:
            root.reset_iter_state()
        self._pipelines.forget_iteration()


def _refuse_hooks_with_state(ddp: DistributedDataParallel) -> None:
    """A hook that remembers (PowerSGD counts its iterations) would let a joiner communicate otherwise."""
    for hook, state in ddp._comm_hooks:
        stateless = state is None or isinstance(state, dist.ProcessGroup) or ddp.mixed_precision is not None
        if not stateless:
            name = getattr(hook, "__qualname__", str(hook))
            raise UsageError(
                f"the communication hook {name} of a DDP module has a state ({type(state).__name__}), which a "
                "replacement would not have. Leave out register_comm_hook, or use a hook without state, such as "
                "fp16_compress_hook"
            )


def engines_in_memory() -> list[nn.Module]:
    """For a script that has named no module: the engines are found where Python keeps its objects. In one order on all
    ranks, as long as no two of them have the same parameters."""
    found = [thing for thing in gc.get_objects() if isinstance(thing, DistributedDataParallel | FSDPModule)]
    inner = {id(part) for engine in found for part in engine.modules() if part is not engine}  # type: ignore[union-attr]
    outer = [engine for engine in found if isinstance(engine, nn.Module) and id(engine) not in inner]
    return sorted(outer, key=lambda engine: [(name, tuple(part.shape)) for name, part in engine.named_parameters()])


def _fresh_number() -> int:
    """A number that no generation and no other sandbox uses."""
    return (1 << 40) | int.from_bytes(os.urandom(4), "little")
