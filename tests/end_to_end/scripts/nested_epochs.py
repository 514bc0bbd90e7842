"""A loop as people write it: epochs, accumulation, an evaluation with reductions, the best model, early stopping.

`nested_epochs.py FOLDER [--kill PLACE:NUMBER:RANK ...]`. Places: body (NUMBER is a step), evaluate, save, end (of an
epoch, after its sections). What each evaluation found is written to results-RANK.txt.
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

EPOCHS, WIDTH, BATCHES = 6, 16, 2

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--kill", nargs="*", default=[])
options = parser.parse_args()


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(number))


class Best:
    """The smallest loss so far, and in how many epochs it has not become smaller."""

    def __init__(self) -> None:
        self.loss, self.patience = float("inf"), 0

    def look(self, loss: float) -> bool:
        better = loss < self.loss
        self.loss, self.patience = (loss, 0) if better else (self.loss, self.patience + 1)
        return better

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def hurt(place: str, number: int) -> None:
    proof = options.folder / f"killed-{place}-{number}"
    if f"{place}:{number}:{job.rank}" in options.kill and not proof.exists():
        time.sleep(4)  # until a spare is warm
        proof.touch()
        os.kill(os.getpid(), signal.SIGKILL)


job = understudy.join(seed=3)
torch.manual_seed(7)
network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
model = DistributedDataParallel(network)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
loader = torch.utils.data.DataLoader(Samples(), batch_size=4, shuffle=True, num_workers=1)
held_out = torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(99))
best = Best()
job.protect(model=model, optimizer=optimizer, scheduler=scheduler, best=best, data=loader, batches_per_step=BATCHES)


@job.section("evaluate")
def evaluate(epoch: int) -> float:
    model.eval()
    with torch.no_grad():
        mine = held_out[job.rank :: job.world_size] + 0.01 * torch.randn(1)
        total = (network(mine) - mine).square().sum()
        hurt("evaluate", epoch)
        dist.all_reduce(total)
        dist.barrier()
    model.train()  # type: ignore[no-untyped-call]
    return float(total.item())


@job.section("save")
def save(epoch: int) -> None:
    scheduler.step()
    if job.rank == 0:
        torch.save(network.state_dict(), options.folder / f"best-{epoch}.pt")
    hurt("save", epoch)
    dist.barrier()


for epoch in job.epochs(EPOCHS):
    with epoch:
        for step in epoch.steps():
            with step:
                for batch in step.batches():
                    ((model(batch) - batch).square().mean() / BATCHES).backward()
                if not step.rehearsing:
                    hurt("body", step.number)
                optimizer.step()
                optimizer.zero_grad()
        loss = evaluate(epoch.number)
        with open(options.folder / f"results-{job.rank}.txt", "a") as results:
            results.write(f"{epoch.number} {loss!r}\n")
        best.look(loss)
        save(epoch.number)
        hurt("end", epoch.number)
        if epoch.number == EPOCHS - 2:
            job.finish()
