"""A small CNN on made-up pictures: epochs, batch norm, four loader workers, an evaluation, the best model.

Its line of a step is written in the step, before the optimizer: batch norm makes the ranks meet at the fence, so a step
that counts has come as far as that on every rank.
"""

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import understudy
from understudy_testkit.faults.catalogue import FaultPoint
from understudy_testkit.faults.loops.arming import armed, halves

STEPS_PER_EPOCH = 6
_BATCH, _RANKS, _KINDS, _SIDE = 4, 2, 4, 8


class Pictures(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """A few patterns under noise; those for training are flipped at random, in a worker process."""

    def __init__(self, size: int, first: int = 0, *, flipped: bool = False) -> None:
        self._size, self._first, self._flipped = size, first, flipped
        self._patterns = torch.randn(_KINDS, 3, _SIDE, _SIDE, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        kind = number % _KINDS
        noise = torch.randn(3, _SIDE, _SIDE, generator=torch.Generator().manual_seed(self._first + number))
        picture = self._patterns[kind] + noise
        return picture.flip(-1) if self._flipped and torch.rand(()) < 0.5 else picture, kind


class Best:
    """The smallest loss of an evaluation so far."""

    def __init__(self) -> None:
        self.loss = float("inf")

    def look(self, loss: float) -> bool:
        better = loss < self.loss
        self.loss = min(self.loss, loss)
        return better

    def state_dict(self) -> dict[str, Any]:
        return {"loss": self.loss}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss = state["loss"]


def network() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(16, _KINDS)),
    )


def train(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(5)
    bare = network()
    job = understudy.join(seed=5)
    model = DistributedDataParallel(bare)
    optimizer = torch.optim.SGD(halves(model.parameters()), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    pictures = Pictures(STEPS_PER_EPOCH * _BATCH * _RANKS, flipped=True)
    sampler: Any = torch.utils.data.DistributedSampler(pictures, job.world_size, job.rank, seed=5)
    loader = torch.utils.data.DataLoader(pictures, batch_size=_BATCH, sampler=sampler, num_workers=4)
    held_out = [Pictures(24, first=1000)[number] for number in range(job.rank, 24, job.world_size)]
    best = Best()
    faults = armed(job, options)
    faults.arm(bare[4], optimizer)
    job.protect(model=model, optimizer=optimizer, scheduler=scheduler, best=best, data=loader)
    log = options.folder / f"log-{job.rank}.txt"
    evaluations = options.folder / f"evaluations-{job.rank}.txt"

    @job.section("evaluate")
    def evaluate(epoch: int) -> float:
        bare.eval()
        totals = torch.zeros(3)
        with torch.no_grad():
            for picture, kind in held_out:
                scores = model(picture[None])
                loss = cross_entropy(scores, torch.tensor([kind]))
                totals += torch.stack([loss, (scores.argmax() == kind).float(), torch.tensor(1.0)])
        faults.at(FaultPoint.EVALUATION)
        dist.all_reduce(totals)
        bare.train()
        loss, accuracy = totals[0] / totals[2], totals[1] / totals[2]
        with open(evaluations, "a") as file:
            print(epoch, loss.item(), accuracy.item(), file=file)
        return loss.item()

    @job.section("save the best")
    def save_best(epoch: int) -> None:
        faults.at(FaultPoint.SAVING)
        if job.rank == 0:
            torch.save({"epoch": epoch, "model": bare.state_dict()}, options.folder / "best.pt")

    @job.section("save")
    def save(epoch: int) -> None:
        if job.rank == 0:
            torch.save({"epoch": epoch, "model": bare.state_dict()}, options.folder / "last.pt")
        faults.at(FaultPoint.SAVING)
        dist.barrier()

    for epoch in job.epochs(options.steps // STEPS_PER_EPOCH):
        with epoch:
            for step in faults.watch(epoch.steps()):
                with step:
                    batch, kinds = step.batch()
                    loss: Any = cross_entropy(model(batch), kinds)
                    loss.backward()
                    if not step.rehearsing:
                        faults.at(FaultPoint.LOG)
                        with open(log, "a") as file:
                            print(step.number, loss.item(), file=file)
                    optimizer.step()
                    optimizer.zero_grad()
            faults.at(FaultPoint.BEFORE_SECTION)
            if best.look(evaluate(epoch.number)):
                save_best(epoch.number)
            save(epoch.number)
            scheduler.step()
            faults.at(FaultPoint.EPOCH_END)
    torch.save({"model": bare.state_dict(), "best": best.loss}, options.folder / f"end-{job.rank}.pt")
