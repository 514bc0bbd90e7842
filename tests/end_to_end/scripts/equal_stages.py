"""Two stages of a pipeline, equal in everything but their place, with two replicas: hand-made, as plain modules. The
first step changes nothing. It can kill itself.

`equal_stages.py FOLDER [--skip] [--kill]`: the learning rate begins with 0, or the first step is skipped as a gradient
scaler would; rank 1, a second stage, is killed in the backward pass of step 3.
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import understudy

STEPS, WIDTH, BATCH = 6, 4, 2

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--skip", action="store_true")
parser.add_argument("--kill", action="store_true")
options = parser.parse_args()


def kill_once() -> None:
    proof = options.folder / "killed"
    if options.kill and not step.rehearsing and step.number == 3 and job.rank == 1 and not proof.exists():
        proof.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def forward_and_backward(x: torch.Tensor) -> None:
    other = torch.empty(BATCH, WIDTH)
    if stage == 0:
        y = model(x)
        dist.send(y.detach(), job.rank + 1)
        dist.recv(other, job.rank + 1)
        y.backward(other)
        return
    dist.recv(other, job.rank - 1)
    loss = model(other.requires_grad_()).square().mean()
    kill_once()
    loss.backward()
    assert other.grad is not None
    dist.send(other.grad, job.rank - 1)


torch.set_num_threads(1)
job = understudy.join(seed=3)
replica, stage = divmod(job.rank, 2)
replicas = [dist.new_group([place, place + 2]) for place in (0, 1)][stage]
assert isinstance(replicas, dist.ProcessGroup)
model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = understudy.Batches(torch.randn(64, WIDTH), batch_size=BATCH, seed=3)
job.protect(model=model, optimizer=optimizer, data=data, share=(replica, 2))
for step in job.steps(STEPS):
    with step:
        forward_and_backward(step.batch())
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=replicas)
        optimizer.param_groups[0]["lr"] = 0.0 if step.number == 0 else 0.1
        if not (options.skip and step.number == 0):
            optimizer.step()
        optimizer.zero_grad()
