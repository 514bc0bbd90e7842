"""A trainer that owns its loop, as a framework's does: its frames are never unwound.

`trainer_loop.py FOLDER [--kill PLACE:NUMBER:RANK ...]`. Places of a step (NUMBER says how many are behind it): forward,
backward, clip, optimizer, after (the optimizer). Between steps: log, evaluate, epoch (NUMBER is then of the epoch).
Each rank writes history-RANK.json at its end: what it has logged and found.
"""

import argparse
import contextlib
import json
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

EPOCHS, WIDTH, ACCUMULATION, SAMPLES, BATCH, EVALUATE_EVERY, LOG_EVERY = 6, 16, 2, 44, 2, 3, 2


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> torch.Tensor:  # a random transform, in a worker process
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(number)) + 0.01 * torch.randn(WIDTH)


class Trainer:
    """Knows nothing of faults, but for the calls of `job`."""

    def __init__(self, job: Any, hurt: Any) -> None:
        self.job, self.hurt, window = job, hurt, job.window
        torch.manual_seed(7)
        network = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.1), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
        )
        self.model = DistributedDataParallel(network)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.1, total_iters=30)
        sampler: Any = torch.utils.data.DistributedSampler(Samples(), job.world_size, job.rank, seed=5)
        loader = torch.utils.data.DataLoader(Samples(), batch_size=BATCH, sampler=sampler, num_workers=2)
        self.sampler, self.loader = sampler, job.rewinding(loader)
        self.held_out = torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(99))
        self.steps = self.passes = self.patience = 0
        self.rate, self.running, self.best = 0.0, 0.0, float("inf")
        self.history: list[dict[str, Any]] = []
        job.protect(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler)
        job.carry(trainer=self)
        self.hurt_optimizer()
        self.compute, self.clip = window.part(self._compute), window.part(self._clip)
        self.apply, self.commit = window.part(self.optimizer.step), window.commit
        self.evaluate = job.section("evaluate", self._evaluate)
        self.end_epoch = job.section("epoch", self._end_epoch)

    def hurt_optimizer(self) -> None:
        self.optimizer.register_step_pre_hook(lambda *_: self.hurt("optimizer", self.steps))
        self.optimizer.register_step_post_hook(lambda *_: self.hurt("after", self.steps))

    def train(self) -> None:
        self.per_epoch = -(-len(self.loader) // ACCUMULATION)
        done = self.job.enter(self.rehearse)
        for epoch in range(done // self.per_epoch, EPOCHS):
            self.sampler.set_epoch(epoch)
            pending: list[torch.Tensor] = []
            for index, batch in enumerate(self.loader, ACCUMULATION * (done % self.per_epoch)):
                pending.append(batch)
                if len(pending) == ACCUMULATION or index + 1 == len(self.loader):
                    self.one_step(pending)
                    pending = []
            done = 0
            if self.end_epoch(epoch):
                break
        self.job.finish()

    def one_step(self, batches: list[torch.Tensor]) -> None:
        for place, batch in enumerate(batches):
            last = place == len(batches) - 1
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss = self.compute(batch, len(batches))
            self.running += loss.item()
        norm = self.clip()
        self.apply()
        self.rate = self.optimizer.param_groups[0]["lr"]
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.steps += 1
        self.commit()
        if self.steps % LOG_EVERY == 0:
            self.log(norm)
        if self.steps % EVALUATE_EVERY == 0:
            found = self.evaluate()
            self.history.append({"step": self.steps, "evaluated": found})

    def log(self, norm: torch.Tensor) -> None:
        rates = [self.rate, self.optimizer.param_groups[0]["lr"]]
        self.history.append({"step": self.steps, "loss": self.running, "norm": norm.item(), "rates": rates})
        self.running = 0.0
        self.hurt("log", self.steps)

    def _compute(self, batch: torch.Tensor, count: int) -> torch.Tensor:
        self.passes += 1
        self.hurt("forward", self.steps)
        loss: Any = (self.model(batch) - batch).square().mean() / count
        if self.model.require_backward_grad_sync:
            loss.register_hook(lambda _: self.hurt("backward", self.steps))
        loss.backward()
        found: torch.Tensor = loss.detach()
        return found

    def _clip(self) -> torch.Tensor:
        self.hurt("clip", self.steps)
        norm: torch.Tensor = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        return norm

    def _evaluate(self) -> float:
        self.model.eval()
        with torch.no_grad():
            mine = self.held_out[self.job.rank :: self.job.world_size] + 0.01 * torch.randn(1)
            total = (self.model(mine) - mine).square().sum()  # DDP makes buffers equal in the first pass only
            total += (self.model(mine) - mine).square().sum()
            self.hurt("evaluate", self.steps)
            dist.all_reduce(total)
        self.model.train()  # type: ignore[no-untyped-call]
        return float(total.item())

    def _end_epoch(self, epoch: int) -> bool:
        loss = torch.tensor(self._evaluate())
        dist.broadcast(loss, src=0)
        self.hurt("epoch", epoch)
        better = loss.item() < self.best
        self.patience = 0 if better else self.patience + 1
        self.best = min(self.best, loss.item())
        self.history.append({"epoch": epoch, "best": self.best})
        dist.barrier()
        return epoch >= 2 and (self.patience > 1 or epoch == EPOCHS - 2)  # stops early

    def rehearse(self) -> None:
        batch = torch.stack([Samples()[number] for number in range(BATCH)])
        with self.model.no_sync():
            self._compute(batch, 1)
        self._compute(batch, 1)
        self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill", nargs="*", default=[])
    options = parser.parse_args()
    job = understudy.join(seed=3)

    def hurt(place: str, number: int) -> None:
        if f"{place}:{number}:{job.rank}" not in options.kill or not job.window.is_real:
            return
        proof = options.folder / f"killed-{place}-{number}-{job.rank}"
        if not proof.exists():
            time.sleep(4)  # until a spare is warm
            proof.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    trainer = Trainer(job, hurt)
    trainer.train()
    found = {"history": trainer.history, "passes": trainer.passes, "steps": trainer.steps, "best": trainer.best}
    digest = [float(value.double().sum()) for value in trainer.model.state_dict().values()]
    (options.folder / f"history-{job.rank}.json").write_text(json.dumps({**found, "weights": digest}, indent=1))


if __name__ == "__main__":
    main()
