"""A loop that does not ask whether its steps count: an evaluation that communicates behind each of them. It can kill
itself.

`unguarded_section.py FOLDER [--kill]`: rank 1 is killed in the forward pass of step 3.
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import understudy

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--kill", action="store_true")
options = parser.parse_args()

torch.set_num_threads(1)
job = understudy.join(seed=3)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
job.protect(model=model, optimizer=optimizer, data=understudy.Batches(torch.randn(64, 4), batch_size=2, seed=3))


@job.section("evaluate")
def evaluate() -> float:
    with torch.no_grad():
        loss = model.module(torch.ones(4)).sum()
    dist.all_reduce(loss)
    return float(loss)


for step in job.steps(6):
    with step:
        proof = options.folder / "killed"
        if options.kill and not step.rehearsing and step.number == 3 and job.rank == 1 and not proof.exists():
            proof.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        model(step.batch()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    found = evaluate()
    assert (found is not None) == step.committed, (found, step.number)
