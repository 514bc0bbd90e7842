"""Trains on a device that runs behind its host, as far as the product can tell: events that are late, a queue that
drains, gloo in place of its communicators, connected by a first reconfigure. Nothing really runs behind here.

    late_device.py FOLDER late|plain [PLACE [spoilt]]

FOLDER gets a file for every question that was asked of the device. PLACE: where rank 1 is killed in step 3. `spoilt`:
that spoils the device of rank 0.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import understudy
from understudy.devices.cpu import Cpu
from understudy.errors import DeviceLost
from understudy.groups.families.gloo import Gloo
from understudy.plugins import registry
from understudy.plugins.kinds import COMMUNICATOR, DEVICE

FOLDER, KIND, PLACE = Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
STEPS, STRUCK = 6, 3


def tell(what: str) -> None:
    with open(FOLDER / f"{what}.{os.getpid()}", "a") as file:
        file.write(".")


class LateEvent:
    def __init__(self) -> None:
        self._at = time.monotonic() + 0.002

    def complete(self) -> bool:
        return time.monotonic() >= self._at


class Late(Cpu):
    name, asynchronous = "late", True

    def record(self) -> Any:
        tell("recorded")
        return LateEvent()

    def drain(self, within: float | None) -> None:
        tell("settled" if within is None else "drained")
        spoilt = FOLDER / "spoilt"
        if within is not None and "spoilt" in sys.argv and os.environ["RANK"] == "0" and not spoilt.exists():
            spoilt.touch()
            raise DeviceLost("its queue does not come to rest")

    def probe(self, within: float) -> None:
        assert within > 0
        tell("probed")


class LateGloo(Gloo):
    device = "late"
    carries_words = connected_when_made = breaks_in_rest = False
    arguments: Mapping[str, Any] = {"enable_reconfigure": True}


def strike(place: str, number: int, rank: int) -> None:
    if place == PLACE and number == STRUCK and rank == 1 and not (FOLDER / "struck").exists():
        (FOLDER / "struck").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def batch_of(step: int, share: int, _shares: int) -> torch.Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + share))


def main() -> None:
    registry.register(DEVICE, "late", "__main__:Late")
    registry.register(COMMUNICATOR, "late-gloo", "__main__:LateGloo")
    job = understudy.join(seed=3, backend="late-gloo" if KIND == "late" else None)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    job.protect(model=model, optimizer=optimizer, data=batch_of)
    for step in job.steps(STEPS):
        with step:
            optimizer.zero_grad()
            loss = model(step.batch()).square().mean()
            strike("backward", step.number, job.rank)
            loss.backward()
            strike("fence", step.number, job.rank)
            optimizer.step()
            strike("optimizer", step.number, job.rank)


main()
