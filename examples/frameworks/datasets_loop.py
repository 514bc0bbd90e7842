"""Hugging Face's datasets in two kinds of loop: map-style, and a stream in shards, with or without a shuffle buffer.

    understudy run --nproc-per-node 2 --spares 1 examples/frameworks/datasets_loop.py FOLDER --kind buffered

`--loop steps` is a loop over `job.steps()`, `--loop windows` one like a trainer's. What each rank has found is written
to FOLDER.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import datasets
import torch
from datasets.distributed import split_dataset_by_node
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import understudy

WIDTH, BATCH, SHARDS = 8, 4, 4


def whole(samples: int) -> datasets.Dataset:
    """Made from memory; one from files is the same."""
    numbers = torch.Generator().manual_seed(1)
    return datasets.Dataset.from_dict({"x": torch.randn(samples, WIDTH, generator=numbers).tolist()})


def loader_of(kind: str, samples: int, workers: int, rank: int, size: int) -> tuple[Any, Any]:
    """It, and what is told the number of an epoch."""
    if kind == "map":
        dataset: Any = whole(samples).shuffle(seed=7).with_format("torch")
        sampler: Any = DistributedSampler(dataset, size, rank, seed=5)
        return DataLoader(dataset, batch_size=BATCH, sampler=sampler, num_workers=workers), sampler
    stream = whole(samples).to_iterable_dataset(num_shards=SHARDS)
    if kind == "buffered":
        stream = stream.shuffle(seed=7, buffer_size=10)
    stream = split_dataset_by_node(stream.with_format("torch"), rank, size)
    return StatefulDataLoader(stream, batch_size=BATCH, num_workers=workers), stream


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--loop", choices=("steps", "windows"), default="steps")
    parser.add_argument("--kind", choices=("map", "stream", "buffered"), default="buffered")
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    job = understudy.join(seed=3)
    loader, numbered = loader_of(options.kind, options.samples, options.workers, job.rank, job.world_size)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def train(batch: dict[str, torch.Tensor]) -> None:
        loss = (model(batch["x"]).squeeze(1) - batch["x"].sum(1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    if options.loop == "steps":
        job.protect(model=model, optimizer=optimizer, data=loader)  # understudy calls set_epoch
        for step in job.steps(options.steps):
            with step:
                train(step.batch())
    else:
        job.protect(model=model, optimizer=optimizer)  # understudy
        loader = job.rewinding(loader)
        train = job.window.step(train)
        per_epoch = options.samples // (job.world_size * BATCH)
        done = job.enter(lambda: rehearse(model, optimizer))  # understudy: so many steps are trained
        for epoch in range(done // per_epoch, options.steps // per_epoch):
            numbered.set_epoch(epoch)
            for batch in loader:
                train(batch)
        job.finish()
    weights = [value.double().sum().item() for value in model.parameters()]
    (options.folder / f"found-{job.rank}.json").write_text(json.dumps({"weights": weights}))


def rehearse(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What a step does, in a replacement's sandbox."""
    model(torch.zeros(BATCH, WIDTH)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    main()
