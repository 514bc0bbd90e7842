"""The work of the benchmark: one model, one dataset, one order of samples. Every arm trains exactly this.

No dropout and nothing else random, so that two runs with the same batches end with the same bits.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
import xxhash
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from understudy.training.data.step_data import Batches
from understudy_testkit.benchmark.scenario import Scenario, Work


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(nn.functional.gelu(self.up(self.norm(x))))
        return x + y


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that are a function of their number."""

    def __init__(self, size: int, width: int) -> None:
        self._size, self._width = size, width

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.randn(self._width, generator=torch.Generator().manual_seed(number))


def build_model(work: Work) -> nn.Sequential:
    torch.manual_seed(work.seed)
    return nn.Sequential(*[Block(work.width) for _ in range(work.blocks)], nn.Linear(work.width, work.width))


def distribute(bare: nn.Sequential, work: Work) -> nn.Module:
    """Over all ranks of the default group: replicas of all (ddp), or two replicas of which each is sharded (hsdp)."""
    if work.mode == "ddp":
        return DistributedDataParallel(bare, gradient_as_bucket_view=True)
    mesh = init_device_mesh("cpu", (2, work.ranks // 2), mesh_dim_names=("replicate", "shard"))
    for layer in bare:
        fully_shard(layer, mesh=mesh)
    fully_shard(bare, mesh=mesh)
    return bare


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def build_data(work: Work) -> Batches:
    return Batches(Samples(work.samples, work.width), batch_size=work.batch_size, seed=work.seed)


def loss_of(model: nn.Module, batch: torch.Tensor) -> Any:
    """Learn to predict the sample shifted by one: a task with something to learn, so that losses can be compared."""
    return (model(batch) - batch.roll(1, dims=-1)).square().mean()


def digest_of(model: nn.Module) -> str:
    """Of all parameters, bit for bit. With shards this is a collective of the ranks that share them."""
    hasher = xxhash.xxh3_128()
    for name, value in sorted(model.state_dict().items()):
        whole: torch.Tensor = value.full_tensor() if isinstance(value, DTensor) else value
        hasher.update(name.removeprefix("module.").encode())
        hasher.update(whole.detach().contiguous().view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def told_by_runner() -> tuple[Scenario, Path]:
    """What the runner tells every worker: `--scenario FILE --folder FOLDER`. Unknown arguments are the arm's own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenario", type=Path, required=True, help="the scenario as JSON")
    parser.add_argument("--folder", type=Path, required=True, help="where to record")
    known, _ = parser.parse_known_args()
    torch.set_num_threads(1)
    return msgspec.json.decode(known.scenario.read_bytes(), type=Scenario), known.folder


def expected_samples(work: Work) -> Callable[[int], Sequence[Sequence[int]]]:
    """Tells which samples each rank sees in a step of a run without faults."""
    data = build_data(work)
    return lambda step: [data.sample_ids(step, rank, work.ranks) for rank in range(work.ranks)]
