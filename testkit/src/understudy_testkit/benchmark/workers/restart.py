"""The work under torchrun, with asynchronous distributed checkpoints and a restart of all ranks."""

import argparse
import shutil
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from understudy_testkit.benchmark.recording import Recorder
from understudy_testkit.benchmark.workload import (
    build_data,
    build_model,
    build_optimizer,
    digest_of,
    distribute,
    loss_of,
    told_by_runner,
)

_KEPT = 2


def _group_timeout() -> timedelta:
    """A hang is noticed when it has passed. The engine's own default is 30 min."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--group-timeout", type=float, default=10.0)
    return timedelta(seconds=parser.parse_known_args()[0].group_timeout)


class Checkpoints:
    """Saves in the background. A checkpoint counts when its metadata is there, which is written last."""

    def __init__(self, folder: Path, rank: int, timeout: timedelta) -> None:
        self._folder, self._rank = folder, rank
        self._saving: Future[Any] | None = None
        # saving happens beside training, so its collectives need a group of their own
        group = dist.new_group(backend="gloo", timeout=timeout)
        assert isinstance(group, dist.ProcessGroup)
        self._group = group

    def newest(self) -> Path | None:
        whole = [path.parent for path in self._folder.glob("*/.metadata")]
        return max(whole, key=lambda path: int(path.name), default=None)

    def load(self, model: nn.Module, optimizer: Any) -> int:
        """Returns the number of steps that the loaded state holds; 0 when there is none."""
        newest = self.newest()
        if newest is None:
            return 0
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
        load(state, checkpoint_id=newest)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return int(newest.name)

    def save(self, model: nn.Module, optimizer: Any, steps: int) -> None:
        self.wait()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        saving = async_save(state, checkpoint_id=self._folder / str(steps), process_group=self._group)
        assert isinstance(saving, Future)
        self._saving = saving
        if self._rank == 0:
            old = sorted((int(path.name) for path in self._folder.iterdir()), reverse=True)[_KEPT + 1 :]
            for number in old:
                shutil.rmtree(self._folder / str(number), ignore_errors=True)

    def wait(self) -> None:
        if self._saving is not None:
            self._saving.result()
            self._saving = None


def main() -> None:
    scenario, folder = told_by_runner()
    work = scenario.work
    timeout = _group_timeout()
    dist.init_process_group("gloo", timeout=timeout)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = distribute(build_model(work), work)
    optimizer = build_optimizer(model)
    data = build_data(work)
    (folder / "checkpoints").mkdir(exist_ok=True)
    checkpoints = Checkpoints(folder / "checkpoints", rank, timeout)
    first = checkpoints.load(model, optimizer)
    recorder = Recorder(folder, rank, ranks)
    for step in range(first, work.steps):
        loss = loss_of(model, data.batch(step, rank, ranks))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        recorder.step(step, loss.item(), data.sample_ids(step, rank, ranks), ranks)
        if (step + 1) % scenario.checkpoint_every == 0:
            checkpoints.save(model, optimizer, step + 1)
    checkpoints.wait()
    recorder.end(digest_of(model))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
