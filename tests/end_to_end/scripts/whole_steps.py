"""A trainer with one function per step, which reads its batches itself: a window of one part.

`whole_steps.py FOLDER [--kill PLACE:STEP:RANK ...]`. Places: second (batch of a step), optimizer.
"""

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import understudy

STEPS, BATCHES, WIDTH = 14, 2, 8

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--kill", nargs="*", default=[])
options = parser.parse_args()
job = understudy.join(seed=5)
window = job.window


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 6 * BATCHES * job.world_size

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(number)) + 0.1 * torch.randn(WIDTH)


class Loop:
    def __init__(self) -> None:
        self.step, self.seen = 0, 0.0


def hurt(place: str) -> None:
    proof = options.folder / f"killed-{place}-{loop.step}"
    if f"{place}:{loop.step}:{job.rank}" in options.kill and window.is_real and not proof.exists():
        time.sleep(4)  # until a spare is warm
        proof.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def endless(items: Any) -> Iterator[torch.Tensor]:
    while True:
        yield from items


def train_step(batches: Iterator[torch.Tensor]) -> float:
    total = 0.0
    for place in range(BATCHES):
        batch = next(batches)
        loop.seen += float(batch.sum())
        hurt("second" if place else "first")
        loss: Any = (model(batch) - batch).square().mean() / BATCHES
        loss.backward()
        total += loss.item()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    window.applied()
    return total


loop = Loop()
torch.manual_seed(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
sampler: Any = torch.utils.data.DistributedSampler(Samples(), job.world_size, job.rank, seed=2)
loader = job.rewinding(torch.utils.data.DataLoader(Samples(), batch_size=1, sampler=sampler, num_workers=1))
job.protect(model=model, optimizer=optimizer, scheduler=scheduler)
job.carry(loop=loop)
optimizer.register_step_post_hook(lambda *_: hurt("optimizer"))

job.enter(lambda: train_step(iter([torch.ones(1, WIDTH)] * BATCHES)))
found, source = {}, endless(loader)
while loop.step < STEPS:
    found[loop.step] = window.part(train_step)(source)
    loop.step += 1
    window.commit()
job.finish()
weights = [float(value.double().sum()) for value in model.state_dict().values()]
content = {"seen": loop.seen, "weights": weights, "losses": found}
(options.folder / f"found-{job.rank}.json").write_text(json.dumps(content))
