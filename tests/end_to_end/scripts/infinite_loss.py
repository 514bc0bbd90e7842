"""`infinite_loss.py FOLDER [--bad]`: with `--bad` rank 1 is killed in step 5, and the first loss of its replacement is
infinite, though its gradients are what they always are. FOLDER has the proofs."""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import understudy

folder = Path(sys.argv[1])
killed, bad = folder / "killed", folder / "bad_once"

torch.set_num_threads(1)
job = understudy.join(seed=7)
model = DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def batch(step: int, rank: int, world_size: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(step * world_size + rank))


job.protect(model=model, optimizer=optimizer, data=batch)
for step in job.steps(10):
    with step:
        loss = model(step.batch()).square().mean()
        if "--bad" in sys.argv and job.rank == 1 and not step.rehearsing:
            if step.number == 5 and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if killed.exists() and not bad.exists():
                bad.touch()
                loss = loss + float("inf")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
