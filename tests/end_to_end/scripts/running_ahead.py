"""Plain DDP on the queued device, whose host is ahead of the fence by a step at a known place.

    running_ahead.py FOLDER cpu|host|device [ahead|killed] [foreach|momentum]

In step 5 the queue stands still, and opens when the `with` block is over: the host of each rank is past the fence, its
device is before it. `killed`: rank 1 is killed there. The learning rate changes between the steps.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import understudy
from understudy_testkit import queued_device
from understudy_testkit.queued_device import plugins

FOLDER, FENCE, WORDS = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
STEPS, PLACE = 10, 5


def batch_of(step: int, share: int, _shares: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + share))


def stands_still(job: understudy.Job, number: int) -> bool:
    return number == PLACE and bool({"ahead", "killed"} & set(WORDS)) and not (FOLDER / f"ahead.{job.rank}").exists()


def tell_how_far_ahead(job: understudy.Job) -> None:
    behind = queued_device.installed().stream.behind
    (FOLDER / f"ahead.{job.rank}").write_text(str(behind))
    if "killed" in WORDS and job.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    torch.set_num_threads(1)
    if FENCE == "cpu":
        job = understudy.join(seed=3)
    else:
        plugins.register()
        job = understudy.join(seed=3, backend="queued", fence=FENCE)  # type: ignore[arg-type]
    torch.manual_seed(5)
    bare = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1)).to(job.device)
    model = DistributedDataParallel(bare)
    optimizer: torch.optim.Optimizer
    if "momentum" in WORDS:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused="foreach" not in WORDS)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    job.protect(model=model, optimizer=optimizer, scheduler=scheduler, data=batch_of)
    for step in job.steps(STEPS):
        with contextlib.ExitStack() as stack:
            still = stands_still(job, step.number)
            if still:
                assert queued_device.installed().drain(60.0)
                stack.enter_context(queued_device.installed().held())
            with step:
                loss = model(step.batch().to(job.device)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if still:
                tell_how_far_ahead(job)
        if step.committed:
            scheduler.step()


main()
