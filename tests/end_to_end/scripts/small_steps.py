"""DDP with a tiny model and many short steps.

    small_steps.py STEPS [--wait-at STEP FILE] [--say BYTES] [--fill-at STEP FILE] [--kill-at STEP FILE]

`--wait-at`: between two steps, until the file exists; whoever waits leaves FILE.<rank>. `--say`: so many bytes are
printed after every step, by every rank. `--fill-at`: rank 0 makes that file as large as its disk allows. `--kill-at`:
rank 1 is killed in the middle of a step, once; the file is the proof. At the end rank 0 prints a digest of the
parameters.
"""

import argparse
import contextlib
import hashlib
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import understudy

parser = argparse.ArgumentParser()
parser.add_argument("steps", type=int)
parser.add_argument("--wait-at", nargs=2)
parser.add_argument("--say", type=int, default=0)
parser.add_argument("--fill-at", nargs=2, default=("-1", ""))
parser.add_argument("--kill-at", nargs=2, default=("-1", ""))
args = parser.parse_args()

torch.set_num_threads(1)
job = understudy.join(seed=1)
torch.manual_seed(3)
model = DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
job.protect(model=model, optimizer=optimizer, data=lambda _step, _rank, _world: torch.randn(4, 8))

for step in job.steps(args.steps):
    with step:
        model(step.batch()).pow(2).mean().backward()
        if step.number == int(args.kill_at[0]) and job.rank == 1 and not Path(args.kill_at[1]).exists():
            Path(args.kill_at[1]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()
    if step.committed and args.say:
        print("x" * args.say, flush=True)
    if step.committed and step.number == int(args.fill_at[0]) and job.rank == 0:
        with contextlib.suppress(OSError), open(args.fill_at[1], "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
    if step.committed and args.wait_at and step.number == int(args.wait_at[0]):
        gate = Path(args.wait_at[1])
        gate.with_suffix(f".{job.rank}").touch()
        while not gate.exists():
            time.sleep(0.01)

if job.rank == 0:
    print("final", hashlib.sha256(model.module.weight.detach().numpy().tobytes()).hexdigest(), flush=True)
