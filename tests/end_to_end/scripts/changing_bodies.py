"""Bodies that differ from step to step. `changing_bodies.py gan|freezing|resuming FOLDER [--kill STEP:RANK ...]`.

gan: the discriminator learns in even steps and the generator in odd ones. freezing: half of the network stops learning.
resuming: a replacement finds a newer checkpoint than the others did, and has fewer steps to go.
"""

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import understudy

STEPS, WIDTH, FREEZE_AT = 14, 24, 4

parser = argparse.ArgumentParser()
parser.add_argument("body", choices=("gan", "freezing", "resuming"))
parser.add_argument("folder", type=Path)
parser.add_argument("--kill", nargs="*", default=[])
options = parser.parse_args()


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(number))


class Crossed(nn.Module):
    """Gradients come in another order than that of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.middle = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(torch.tanh(self.middle(torch.relu(self.first(x)))))
        return y


def engine(**settings: Any) -> DistributedDataParallel:
    return DistributedDataParallel(Crossed(), bucket_cap_mb=0.005, **settings)


def hurt(step: Any) -> None:
    proof = options.folder / f"killed-{step.number}"
    if step.rehearsing or f"{step.number}:{job.rank}" not in options.kill or proof.exists():
        return
    time.sleep(4)  # until a spare is warm again
    proof.touch()
    os.kill(os.getpid(), signal.SIGKILL)


def gan() -> None:
    generator, critic = engine(), engine()
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-2)
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-2)
    job.protect(g=generator, d=critic, opt_g=of_generator, opt_d=of_critic, data=data)
    for step in job.steps(STEPS):
        with step:
            real, noise = step.batch(), torch.randn(4, WIDTH)
            hurt(step)
            if step.number % 2 == 0:
                loss = F.softplus(-critic(real)).mean() + F.softplus(critic(generator(noise).detach())).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                of_critic.step()
            else:
                loss = F.softplus(-critic(generator(noise))).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                of_generator.step()
            of_generator.zero_grad()
            of_critic.zero_grad()


def freezing() -> None:
    model = engine(find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    job.protect(model=model, optimizer=optimizer, data=data)
    for step in job.steps(STEPS):
        with step:
            batch = step.batch()
            hurt(step)
            if step.number == FREEZE_AT:
                model.module.first.requires_grad_(False)
            (model(batch) - batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def resuming() -> None:
    done = 5 if list(options.folder.glob("killed-*")) else 0
    model = engine()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    job.protect(model=model, optimizer=optimizer, data=data)
    for step in job.steps(STEPS - done):
        with step:
            batch = step.batch()
            hurt(step)
            (model(batch) - batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


job = understudy.join(seed=3)
data = understudy.Batches(Samples(), batch_size=4, seed=5)
{"gan": gan, "freezing": freezing, "resuming": resuming}[options.body]()
