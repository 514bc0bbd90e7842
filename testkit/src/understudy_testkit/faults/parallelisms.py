"""The training script's model under every parallelism: one residual network, spread over the ranks in different ways.

Each way gives back what the script needs to know: what to protect, where a fault can strike, and how to run a batch.
"""

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width: int, recompute: bool = False, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.drop = nn.Dropout(dropout)
        self._recompute = recompute

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.drop(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))
        return y

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._recompute:
            y: torch.Tensor = checkpoint(self._inner, x, use_reentrant=False)
            return x + y
        return x + self._inner(x)


class Experts(nn.Module):
    """A mixture of experts: one expert per rank of `group`. Every expert chooses its share of each rank's tokens by the
    router's scores (all experts get equally many), and they travel there and back by all-to-all."""

    def __init__(self, width: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.router = nn.Linear(width, dist.get_world_size(group))
        torch.manual_seed(12 + dist.get_rank(group))
        self.expert = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self._group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, chosen = self.router(x).softmax(dim=-1).t().topk(len(x) // self.router.out_features)
        tokens = chosen.reshape(-1)
        computed: torch.Tensor = _Exchange.apply(self.expert(_Exchange.apply(x[tokens], self._group)), self._group)
        return x.index_add(0, tokens, computed * scores.reshape(-1, 1))


class _Exchange(torch.autograd.Function):
    """Part i of every rank's tokens goes to rank i. It is its own inverse."""

    @staticmethod
    def forward(context, x, group):  # type: ignore[no-untyped-def]
        context.group = group
        received = torch.empty_like(x)
        dist.all_to_all_single(received, x.contiguous(), group=group)
        return received

    @staticmethod
    def backward(context, gradient):  # type: ignore[no-untyped-def]
        return _Exchange.apply(gradient, context.group), None


@dataclass(frozen=True, slots=True)
class Trained:
    """`struck`: a module in the middle, for faults. `run`: forward and backward of a batch, gradients averaged over the
    replicas. `share`: which part of each batch is this rank's."""

    model: nn.Module
    struck: nn.Module
    run: Callable[[torch.Tensor], None]
    share: tuple[int, int]


def loss_of(output: torch.Tensor, _target: torch.Tensor | None = None) -> torch.Tensor:
    return output.square().mean()


def _run(model: nn.Module, batch: torch.Tensor) -> None:
    loss_of(model(batch)).backward()  # type: ignore[no-untyped-call]


def _own_share() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def _average(model: nn.Module, group: dist.ProcessGroup, run: Callable[[torch.Tensor], None]) -> Callable[..., None]:
    """As scripts do it by hand: after the backward, every gradient is averaged over the replicas."""

    def run_and_average(batch: torch.Tensor) -> None:
        run(batch)
        for parameter in model.parameters():
            if parameter.grad is not None:
                gradient = parameter.grad
                part = gradient.to_local() if isinstance(gradient, DTensor) else gradient
                dist.all_reduce(part, group=group)
                part /= dist.get_world_size(group)

    return run_and_average


def _split_blocks(blocks: Sequence[nn.Module], mesh: DeviceMesh) -> None:
    """Tensor parallelism: each block's inner width is spread over the ranks of the mesh."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for block in blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


# -- the ways ----------------------------------------------------------------------------------------------------------


def ddp(bare: nn.Sequential, fast: bool = False) -> Trained:
    model = DistributedDataParallel(bare, gradient_as_bucket_view=fast)
    return Trained(model, _middle(bare), functools.partial(_run, model), _own_share())


def ddp_static(bare: nn.Sequential) -> Trained:
    """A graph that never changes, and buckets so small that there are several."""
    model = DistributedDataParallel(bare, static_graph=True, bucket_cap_mb=0.01)
    return Trained(model, _middle(bare), functools.partial(_run, model), _own_share())


def hsdp(bare: nn.Sequential, replicas: int = 2) -> Trained:
    mesh = _mesh(bare, (replicas, dist.get_world_size() // replicas), ("rep", "shard"))
    _shard(bare, mesh)
    return Trained(bare, _middle(bare), functools.partial(_run, bare), _own_share())


def fsdp(bare: nn.Sequential) -> Trained:
    """Sharded over all ranks: no rank has a twin."""
    _shard(bare, _mesh(bare, (dist.get_world_size(),), ("shard",)))
    return Trained(bare, _middle(bare), functools.partial(_run, bare), _own_share())


def tensor_and_data(bare: nn.Sequential) -> Trained:
    mesh = _mesh(bare, (dist.get_world_size() // 2, 2), ("dp", "tp"))
    _split_blocks(_blocks(bare), mesh["tp"])
    run = _average(bare, mesh.get_group("dp"), functools.partial(_run, bare))
    return Trained(bare, _middle(bare), run, _share_of(mesh))


def sharded_and_tensor(bare: nn.Sequential) -> Trained:
    """FSDP2 with replicas, and tensor parallelism inside each shard: eight ranks."""
    mesh = _mesh(bare, (2, dist.get_world_size() // 4, 2), ("rep", "shard", "tp"))
    _split_blocks(_blocks(bare), mesh["tp"])
    _shard(bare, mesh["rep", "shard"])
    count = mesh["rep"].size() * mesh["shard"].size()
    index = mesh.get_local_rank("rep") * mesh["shard"].size() + mesh.get_local_rank("shard")
    return Trained(bare, _middle(bare), functools.partial(_run, bare), (index, count))


def experts_and_data(bare: nn.Sequential, width: int) -> Trained:
    mesh = _mesh(bare, (dist.get_world_size() // 2, 2), ("dp", "ep"))
    experts = Experts(width, mesh.get_group("ep"))
    model = nn.Sequential(bare[0], experts, bare[1])
    dense = nn.ModuleList([bare[0], bare[1], experts.router])
    run = _average(experts.expert, mesh.get_group("dp"), functools.partial(_run, model))
    world = dist.group.WORLD
    assert world is not None
    return Trained(model, _middle(bare), _average(dense, world, run), _own_share())


def pipeline_and_data(bare: nn.Sequential, schedule: str, tensor: bool = False) -> Trained:
    """Two stages (four for the interleaved schedule: two per rank), replicas of the whole pipeline, and if wanted
    tensor parallelism inside each stage."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

    shape = (dist.get_world_size() // 4, 2, 2) if tensor else (dist.get_world_size() // 2, 2)
    mesh = _mesh(bare, shape, ("dp", "pp", "tp")[: len(shape)])
    group, place = mesh.get_group("pp"), mesh.get_local_rank("pp")
    parts = _parts(bare, 4 if schedule == "interleaved" else 2)
    own = list(range(place, len(parts), 2))
    model = nn.ModuleList([parts[number] for number in own])
    if tensor:
        _split_blocks([block for block in model.modules() if isinstance(block, Block)], mesh["tp"])
    device = next(bare.parameters()).device
    stages = [PipelineStage(parts[number], number, len(parts), device, group=group) for number in own]
    made: ScheduleGPipe | Schedule1F1B | ScheduleInterleaved1F1B
    if schedule == "interleaved":
        made = ScheduleInterleaved1F1B(stages, 4, loss_fn=loss_of)  # type: ignore[arg-type]
    else:
        made = (ScheduleGPipe if schedule == "gpipe" else Schedule1F1B)(stages[0], 4, loss_fn=loss_of)

    def run(batch: torch.Tensor) -> None:
        if place == 0:
            made.step(batch)
        else:
            made.step(target=batch)

    struck = next(block for block in model.modules() if isinstance(block, Block))
    return Trained(model, struck, _average(model, mesh.get_group("dp"), run), _share_of(mesh))


def slow_down_batches(seconds: float) -> None:
    """A host that takes its time between the begin of a batch and its messages, so that a fault finds it there."""
    begin = dist.ProcessGroup._start_coalescing

    def begin_and_wait(group: dist.ProcessGroup, device: torch.device) -> None:
        begin(group, device)
        time.sleep(seconds)

    dist.ProcessGroup._start_coalescing = begin_and_wait  # type: ignore[method-assign, assignment]


# -- parts -------------------------------------------------------------------------------------------------------------


def _mesh(bare: nn.Sequential, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    """On the kind of device that the network is on."""
    return init_device_mesh(next(bare.parameters()).device.type, shape, mesh_dim_names=names)


def _blocks(bare: nn.Sequential) -> list[nn.Module]:
    return list(bare[0].children())


def _middle(bare: nn.Sequential) -> nn.Module:
    blocks = _blocks(bare)
    return blocks[len(blocks) // 2]


def _shard(bare: nn.Sequential, mesh: DeviceMesh) -> None:
    for block in _blocks(bare):
        fully_shard(block, mesh=mesh)
    fully_shard(bare, mesh=mesh)


def _parts(bare: nn.Sequential, count: int) -> list[nn.Module]:
    """The network in `count` pieces; the last one has the head."""
    blocks = _blocks(bare)
    bounds = [len(blocks) * number // count for number in range(count + 1)]
    parts: list[list[nn.Module]] = [blocks[begin:end] for begin, end in itertools.pairwise(bounds)]
    parts[-1] = [*parts[-1], bare[1]]
    return [nn.Sequential(*part) for part in parts]


def _share_of(mesh: DeviceMesh) -> tuple[int, int]:
    return mesh.get_local_rank("dp"), mesh["dp"].size()
