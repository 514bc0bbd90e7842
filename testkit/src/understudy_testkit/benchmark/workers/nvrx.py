"""DistributedDataParallel in a function that NVIDIA's in-process restart calls again after every fault.

Only what depends on the process group is made in the wrapped function; the model, the optimizer and the data are made
once per process and take their values from the newest checkpoint at every call, as its documentation recommends.

With `--host-store` this module is the server of the store instead, a process apart from all ranks (see `SharedStore`).
"""

import copy
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import nvidia_resiliency_ext.inprocess as inprocess
import torch
import torch.distributed as dist
from nvidia_resiliency_ext.inprocess import rank_assignment
from nvidia_resiliency_ext.inprocess.abort import Abort, AbortTorchDistributed
from nvidia_resiliency_ext.inprocess.finalize import Finalize
from nvidia_resiliency_ext.inprocess.store import StoreMixin
from torch import nn
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel

from understudy.training.data.step_data import Batches
from understudy_testkit.benchmark.recording import Recorder
from understudy_testkit.benchmark.scenario import Scenario, Work
from understudy_testkit.benchmark.workload import (
    build_data,
    build_model,
    build_optimizer,
    digest_of,
    loss_of,
    told_by_runner,
)

# A stopped rank costs about _HARD. The order matters: survivors that wait for a stopped rank are freed only by the
# timeout of their group, and would be killed too if they were still waiting when the hard timeout is over.
_SOFT = timedelta(seconds=2)
_GROUP_TIMEOUT = timedelta(seconds=3)
_HARD = timedelta(seconds=5)
_WATCHDOG = timedelta(seconds=0.2)
_MONITOR = timedelta(seconds=0.1)  # below _WATCHDOG: a monitor that always has a timestamp to read never checks
_STORE_TIMEOUT = timedelta(seconds=60)


class SharedStore(TCPStore, StoreMixin):  # type: ignore[misc]
    """A client of the store that the launcher has started. The default store lives in rank 0 and dies with it; a store
    of one's own is the way around that which the documentation names."""

    def __init__(self) -> None:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        super().__init__(host, port, is_master=False, wait_for_workers=False, timeout=_STORE_TIMEOUT)


class LocalCheckpoints:
    """One file, written by rank 0 in the background: with data parallelism every rank has the same state. Nothing here
    is collective, so that a save cannot hang on a dead rank."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: threading.Thread | None = None

    def load(self) -> dict[str, Any] | None:
        if not self._path.exists():
            return None
        state: dict[str, Any] = torch.load(self._path, weights_only=True)
        return state

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        self.wait()
        copied = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "steps": steps})
        self._writer = threading.Thread(target=self._write, args=(copied,), daemon=True)
        self._writer.start()

    def wait(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _write(self, state: dict[str, Any]) -> None:
        unfinished = self._path.with_suffix(f".{os.getpid()}")
        torch.save(state, unfinished)
        os.replace(unfinished, self._path)


@dataclass
class Process:
    """What outlives a restart of the function."""

    scenario: Scenario
    folder: Path
    model: nn.Module
    data: Batches
    store: SharedStore
    snapshots: LocalCheckpoints
    optimizer: torch.optim.Optimizer = field(init=False)
    replica: DistributedDataParallel | None = None  # kept here only, so that it can be let go of (see leave_group)
    recorder: Recorder | None = None  # of the rank that this process holds now; none while it is in reserve

    def __post_init__(self) -> None:
        self.optimizer = build_optimizer(self.model)
        self._first_weights = copy.deepcopy(self.model.state_dict())

    def restore(self) -> int:
        """Returns the number of steps that the state holds. Without a checkpoint everything begins again."""
        state = self.snapshots.load()
        self.optimizer = build_optimizer(self.model)
        self.optimizer.zero_grad()
        if state is None:
            self.model.load_state_dict(self._first_weights)
            return 0
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["steps"])

    def leave_group(self) -> None:
        """The last reference to the group's connections goes with the replica. Until they are closed, a rank that does
        not talk to the dead one directly waits for this one: an abort of the wrapper does not reach gloo's waits."""
        self.replica = None
        gc.collect()


class NotingAbort(Abort):  # type: ignore[misc]
    """Runs in a process the moment that it learns of a fault anywhere."""

    def __init__(self, process: Process) -> None:
        self._process, self._abort = process, AbortTorchDistributed()

    def __call__(self, state: Any) -> Any:
        if self._process.recorder is not None:
            self._process.recorder.noticed(f"restart {state.iteration + 1}")
        return self._abort(state)


class SettleSnapshots(Finalize):  # type: ignore[misc]
    """Before the barrier of a restart, so that all ranks then find the same newest checkpoint."""

    def __init__(self, snapshots: LocalCheckpoints) -> None:
        self._snapshots = snapshots

    def __call__(self, state: Any) -> Any:
        self._snapshots.wait()
        return state


def train(process: Process, call_wrapper: inprocess.CallWrapper | None = None) -> None:
    """Called again after each fault, in every process that holds a rank. RANK and WORLD_SIZE are those of this call."""
    assert call_wrapper is not None  # filled in by the wrapper
    try:
        _train(process, call_wrapper)
    finally:
        process.leave_group()


def _train(process: Process, call_wrapper: inprocess.CallWrapper) -> None:
    work, data = process.scenario.work, process.data
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    first = process.restore()
    store = PrefixStore(f"training-{call_wrapper.iteration}", process.store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=_GROUP_TIMEOUT)
    process.replica = DistributedDataParallel(process.model, gradient_as_bucket_view=True)
    process.recorder = recorder = Recorder(process.folder, rank, work.ranks)
    for step in range(first, work.steps):
        loss = loss_of(process.replica, data.batch(step, rank, ranks))
        loss.backward()
        process.optimizer.step()
        process.optimizer.zero_grad()
        recorder.step(step, loss.item(), data.sample_ids(step, rank, ranks), ranks)
        call_wrapper.ping()
        if rank == 0 and (step + 1) % process.scenario.checkpoint_every == 0:
            with call_wrapper.atomic():
                process.snapshots.save(process.model, process.optimizer, step + 1)
    process.snapshots.wait()
    recorder.end(digest_of(process.model))
    dist.destroy_process_group()


def protected(process: Process) -> Callable[[Process], None]:
    wrapper = inprocess.Wrapper(
        store_factory=SharedStore,
        abort=NotingAbort(process),
        finalize=SettleSnapshots(process.snapshots),
        rank_assignment=inprocess.Compose(  # the last is applied first
            rank_assignment.MaxActiveWorldSize(process.scenario.work.ranks),
            rank_assignment.FillGaps(),
        ),
        monitor_thread_interval=_WATCHDOG,
        monitor_process_interval=_MONITOR,
        progress_watchdog_interval=_WATCHDOG,
        soft_timeout=_SOFT,
        hard_timeout=_HARD,
        last_call_wait=timedelta(0),
        termination_grace_time=timedelta(0),
        monitor_process_logfile=str(process.folder.resolve() / "monitor-{rank}.log"),
    )
    call: Callable[[Process], None] = wrapper(train)
    return call


def warm_up(work: Work) -> None:
    """One step in a group of one, so that no process loads libraries during a recovery: a spare has done it long
    before."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(build_model(work), gradient_as_bucket_view=True)
    optimizer = build_optimizer(model)
    loss_of(model, build_data(work).batch(0, 0, work.ranks)).backward()
    optimizer.step()
    dist.destroy_process_group()


def host_store() -> None:
    server = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=True, wait_for_workers=False)
    while True:
        time.sleep(3600)
        server.num_keys()  # it lives as long as something refers to it


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(process)d %(name)s %(message)s")
    if "--host-store" in sys.argv:
        host_store()
    scenario, folder = told_by_runner()
    warm_up(scenario.work)
    snapshots = LocalCheckpoints(folder / "checkpoint.pt")
    model, data = build_model(scenario.work), build_data(scenario.work)
    process = Process(scenario, folder, model, data, SharedStore(), snapshots)
    gc.collect()
    gc.freeze()  # every restart collects garbage until there is none; what the libraries made need not be looked at
    protected(process)(process)
    gc.unfreeze()  # bindings count leaks at exit otherwise


if __name__ == "__main__":
    main()
