"""A script whose ranks have buffers of their own: batch-norm statistics, and a memory of its samples that takes part in
training. It can kill itself.

`rank_local_buffers.py FOLDER [--victim RANK] [--no-broadcast]`: that rank is killed in the backward pass of step 4, and
its successor in step 7, right after its optimizer.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import understudy

STEPS, WIDTH = 10, 8

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--victim", type=int)
parser.add_argument("--no-broadcast", action="store_true", help="DDP leaves every rank its own buffers")
options = parser.parse_args()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1)
        self.register_buffer("memory", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        memory: torch.Tensor = self.memory  # type: ignore[assignment]
        with torch.no_grad():
            memory.lerp_(x.mean(0), 0.1)
        y: torch.Tensor = self.last(self.norm(self.first(x - memory)))
        return y


def kill_once(at: int) -> None:
    proof = options.folder / f"killed-{at}"
    if not step.rehearsing and step.number == at and job.rank == options.victim and not proof.exists():
        proof.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class _Struck(torch.autograd.Function):
    """In the backward pass, before any gradient is there."""

    @staticmethod
    def forward(_context, x):  # type: ignore[no-untyped-def]
        return x.clone()

    @staticmethod
    def backward(_context, gradient):  # type: ignore[no-untyped-def]
        kill_once(4)
        return gradient


def after_optimizer(*_: Any) -> None:
    kill_once(7)


torch.set_num_threads(1)
job = understudy.join(seed=3)
model = DistributedDataParallel(Net(), broadcast_buffers=not options.no_broadcast)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer.register_step_post_hook(after_optimizer)
data = understudy.Batches(torch.randn(64, WIDTH), batch_size=4, seed=3)
job.protect(model=model, optimizer=optimizer, data=data)
for step in job.steps(STEPS):
    with step:
        loss = _Struck.apply(model(step.batch())).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
