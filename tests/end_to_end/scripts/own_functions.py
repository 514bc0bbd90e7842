"""A script with checkpoint functions of its own. Runs under python, torchrun and understudy, and can hurt itself.

`own_functions.py RESULT [--kill-at STEP] [--break-at STEP] [--fail-at-setup] [--functions-only] [--tail SECONDS]`: rank
0 writes a digest of the final state to RESULT. `average` is carried by the script's own functions alone, and the loss
depends on it.
"""

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import understudy
from understudy.state.digests import digest_tensors

STEPS = 10

parser = argparse.ArgumentParser()
parser.add_argument("result", type=Path)
parser.add_argument("--kill-at", type=int)
parser.add_argument("--break-at", type=int)
parser.add_argument("--fail-at-setup", action="store_true")
parser.add_argument("--functions-only", action="store_true", help="name neither model nor optimizer")
parser.add_argument("--tail", type=float, default=0.0, help="seconds of work after the last step")
options = parser.parse_args()

torch.set_num_threads(1)
job = understudy.join(seed=11)
if options.fail_at_setup and job.rank == 1:
    raise LookupError("the data set is not there")
temporary: Any = dist.new_group(list(range(job.world_size)))  # a group that is gone when the loop begins
dist.barrier(group=temporary)
dist.destroy_process_group(temporary)
del temporary
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 8)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
average = {"loss": 1.0}


def save(path: Path) -> None:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "average": dict(average)}, path)


def load(path: Path) -> None:
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    average.update(state["average"])


def batch(step: int, rank: int, world_size: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(step * world_size + rank))


def kill_once(step: int) -> None:
    proof = options.result.with_suffix(".killed")
    if options.kill_at == step and job.rank == job.world_size - 1 and not proof.exists():
        proof.touch()
        os.kill(os.getpid(), signal.SIGKILL)


if options.functions_only:
    job.protect(data=batch, save=save, load=load)
else:
    job.protect(model=model, optimizer=optimizer, data=batch, save=save, load=load)
for step in job.steps(STEPS):
    with step:
        loss = model(step.batch()).square().mean() / average["loss"]
        loss.backward()
        if not step.rehearsing:
            kill_once(step.number)
        optimizer.step()
        optimizer.zero_grad()
    if step.committed:
        average["loss"] = 0.9 * average["loss"] + 0.1 * 2.0 ** -(step.number % 3)
    if step.number == options.break_at:
        break

time.sleep(options.tail)
if job.rank == 0:
    weights = digest_tensors(model.state_dict().items())
    options.result.write_text(f"{step.number} {average['loss']!r} {weights}\n")
