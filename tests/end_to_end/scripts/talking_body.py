"""A body that talks in DDP's own group, as contrastive losses do: `talking_body.py FOLDER [--kill-at STEP]`."""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import understudy

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--kill-at", type=int)
options = parser.parse_args()
job = understudy.join(seed=3)
model = DistributedDataParallel(nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.protect(
    model=model, optimizer=optimizer, data=lambda step, rank, _size: torch.full((2, 8), step + 0.1 * rank).sin()
)

for step in job.steps(8):
    with step:
        features = model(step.batch())
        heard = [torch.zeros_like(features) for _ in range(job.world_size)]
        dist.all_gather(heard, features.detach())
        scale = torch.tensor([1.0 + step.number])
        dist.broadcast(scale, src=job.world_size - 1)
        proof = options.folder / "killed"
        if step.number == options.kill_at and job.rank == 1 and not step.rehearsing and not proof.exists():
            time.sleep(4)  # until a spare is warm
            proof.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (features * torch.cat(heard).mean() / scale).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
