"""A script whose data comes from its own DataLoader, with workers and random transforms, and whose body changes its
batches in place. It can hurt itself.

`own_loader.py FOLDER [--kill-at STEP] [--victim rank|worker] [--tracked | --stateful | --stream]`: rank 1 is killed in
its backward pass, or one of its DataLoader workers is.
"""

import argparse
import io
import multiprocessing
import os
import random
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

import understudy

SAMPLES, EPOCHS, WIDTH = 22, 3, 8

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--kill-at", type=int)
parser.add_argument("--victim", choices=("rank", "worker"), default="rank")
parser.add_argument("--tracked", action="store_true", help="the random streams are the script's own")
parser.add_argument("--stateful", action="store_true", help="a loader that knows its position")
parser.add_argument("--stream", action="store_true", help="shards that are read and shuffled by worker processes")
options = parser.parse_args()


class Pictures(Dataset[torch.Tensor]):
    """Values from 0 to 255 with a random transform; every generator is drawn from."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> torch.Tensor:
        picture = torch.full((WIDTH,), float(number))
        if not options.stateful:  # of a stateful loader a replacement's workers draw other numbers
            picture += torch.rand(WIDTH) + random.random() + float(np.random.rand())
        return picture


class Shards(IterableDataset[torch.Tensor]):
    """As WebDataset does it: each worker of each rank reads tar files of its own, in an order that its seed gives, and
    mixes what it reads. It knows no position."""

    def __init__(self, rank: int) -> None:
        self._paths = [options.folder / f"shard-{rank}-{place}.tar" for place in range(4)]
        for path in self._paths:
            if not path.exists():
                self._write(path, rank)

    def _write(self, path: Path, rank: int) -> None:
        with tarfile.open(path, "w") as shard:
            for number in range(3):
                content = bytes([rank * 100 + self._paths.index(path) * 10 + number]) * WIDTH
                entry = tarfile.TarInfo(f"{number}.bin")
                entry.size = len(content)
                shard.addfile(entry, io.BytesIO(content))

    def __len__(self) -> int:
        return 3 * len(self._paths)

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        assert worker is not None
        paths, order = self._paths[worker.id :: worker.num_workers], random.Random(worker.seed)
        order.shuffle(paths)
        pool: list[bytes] = []
        for path in paths:
            with tarfile.open(path) as shard:
                pool += [shard.extractfile(entry).read() for entry in shard]  # type: ignore[union-attr]
            while len(pool) > 1:
                yield torch.tensor(list(pool.pop(order.randrange(len(pool)))), dtype=torch.float32)
        yield from (torch.tensor(list(content), dtype=torch.float32) for content in pool)


def make_loader() -> Any:
    dataset = Pictures()
    if options.stream:
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(Shards(job.rank), batch_size=2, num_workers=2)
    if options.stateful:
        from torchdata.stateful_dataloader import StatefulDataLoader
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

        own: Any = StatefulDistributedSampler(dataset, job.world_size, job.rank, seed=5)
        return StatefulDataLoader(dataset, batch_size=2, sampler=own, num_workers=1)
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(dataset, job.world_size, job.rank, seed=5)
    return DataLoader(dataset, batch_size=2, sampler=sampler, num_workers=2, prefetch_factor=3, pin_memory=False)


class _Struck(torch.autograd.Function):
    """In the backward pass, before any gradient is there."""

    @staticmethod
    def forward(_context, x):  # type: ignore[no-untyped-def]
        return x.clone()

    @staticmethod
    def backward(_context, gradient):  # type: ignore[no-untyped-def]
        kill_once()
        return gradient


def kill_once() -> None:
    proof = options.folder / "killed"
    if step.rehearsing or options.kill_at != step.number or job.rank != 1 or proof.exists():
        return
    proof.touch()
    victim = os.getpid() if options.victim == "rank" else multiprocessing.active_children()[0].pid
    assert victim is not None
    os.kill(victim, signal.SIGKILL)


torch.set_num_threads(1)
job = understudy.join(seed=3, rng="tracked" if options.tracked else "derived")
loader = make_loader()
model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
job.protect(model=model, optimizer=optimizer, data=loader)
for step in job.steps(EPOCHS * len(loader)):
    with step:
        x = step.batch()
        x.div_(255)
        loss = _Struck.apply(model(x)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if step.committed and job.rank == 0:
        print(f"step {step.number} epoch {step.number // len(loader)}", flush=True)
print(f"workers left: {len(multiprocessing.active_children())}", flush=True)
