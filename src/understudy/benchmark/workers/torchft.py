"""One replica group of one rank under torchft: its Manager, ProcessGroupGloo, DistributedDataParallel and Optimizer,
put together as in its example train_ddp.py (`ProcessGroupGloo` with its own timeout, `PGTransport` for healing).

Where the example leaves a choice, the choice is the one that is best for torchft:

* Data. The example splits the samples by group number and tells its user to save the loader's position often, because a
  restarted loader begins again. Here the position is `manager.current_step()`, which costs nothing and comes with the
  healed state: no batch is repeated after a restart. What a group would have seen while it was away is lost, as the
  documentation of torchft's sampler says.
* `init_sync=False`, as the Manager's documentation asks for when all groups begin with the same seed. Otherwise the
  first step would use the gradients of one group only.
* Every group waits at the start until all have their Manager, so that the first quorum is complete.
* The end. The weights are saved when the last step is committed. A group that is not there by then (it was killed
  late, or it did not commit the last step) would otherwise train on alone; it takes those weights and ends.

Recording. Without spares a group is the rank of its number. With spares (FIXED_WITH_SPARES, more groups than ranks) a
group is the rank that torchft gives it for the step (`participating_rank`): it reads that rank's samples and records
under that rank, with a new recorder each time the rank changes. torchft numbers the participants in the order of their
names, so one death can move several groups to another rank. A group that does not participate records nothing.
"""

import argparse
import logging
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.checkpointing.pg_transport import PGTransport
from torchft.manager import WorldSizeMode

from understudy.benchmark.recording import Recorder
from understudy.benchmark.scenario import Work
from understudy.benchmark.workload import build_data, build_model, build_optimizer, digest_of, loss_of, told_by_runner

_START_PATIENCE = 120.0


def _options() -> argparse.Namespace:
    """The defaults are those of train_ddp.py, or of torchft where train_ddp.py says nothing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--group", type=int, required=True, help="the number of this replica group")
    parser.add_argument("--groups", type=int, required=True, help="how many there are, spares included")
    parser.add_argument("--fixed-with-spares", action="store_true", help="the world size stays at the number of ranks")
    parser.add_argument("--group-timeout", type=float, default=5.0, help="of ProcessGroupGloo, seconds")
    parser.add_argument("--transport-timeout", type=float, default=10.0, help="of PGTransport, seconds")
    parser.add_argument("--timeout", type=float, default=30.0, help="of the Manager, seconds")
    parser.add_argument("--quorum-timeout", type=float, default=60.0, help="of the Manager, seconds")
    parser.add_argument("--heartbeat-interval", type=float, default=0.1, help="of the Manager, seconds")
    return parser.parse_known_args()[0]


class Training:
    def __init__(self, work: Work, folder: Path, options: argparse.Namespace) -> None:
        self._work, self._folder, self._options = work, folder, options
        self._store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # torchrun would have one
        self._group = ProcessGroupGloo(timeout=timedelta(seconds=options.group_timeout))
        self._members = 0  # of the quorum, spares and the healing included
        self.manager = self._make_manager()
        self.model = DistributedDataParallel(self.manager, build_model(work))
        self._optimizer = Optimizer(self.manager, build_optimizer(self.model))
        self._data = build_data(work)
        self._recorder: Recorder | None = None
        self._rank: int | None = None
        if not options.fixed_with_spares:
            self._record_as(options.group)

    def run(self) -> None:
        self._wait_for_all()
        while self.manager.current_step() < self._work.steps:
            if self._final.exists():
                self.model.module.load_state_dict(torch.load(self._final))
                break
            self._step()
        self._save()
        if self._recorder is not None:
            self._recorder.end(digest_of(self.model.module))

    def _make_manager(self) -> Any:
        options = self._options
        spares = options.fixed_with_spares
        return Manager(
            pg=self._group,
            min_replica_size=self._work.ranks if spares else 1,
            world_size_mode=WorldSizeMode.FIXED_WITH_SPARES if spares else WorldSizeMode.DYNAMIC,
            load_state_dict=self._load_state_dict,
            state_dict=self._state_dict,
            replica_id=f"group_{options.group}",
            timeout=timedelta(seconds=options.timeout),
            quorum_timeout=timedelta(seconds=options.quorum_timeout),
            heartbeat_interval=timedelta(seconds=options.heartbeat_interval),
            checkpoint_transport=PGTransport(
                self._group, timeout=timedelta(seconds=options.transport_timeout), device=torch.device("cpu")
            ),
            init_sync=False,
            rank=0,
            world_size=1,
            store_addr="localhost",
            store_port=self._store.port,
        )

    def _state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optim": self._optimizer.state_dict()}

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optim"])

    def _step(self) -> None:
        manager, ranks = self.manager, self._work.ranks
        self._optimizer.zero_grad()  # starts the quorum in the background
        rank = self._rank_of_step()
        place = manager.current_step()
        loss = loss_of(self.model, self._data.batch(place, rank, ranks))
        loss.backward()
        self._notice_absence()
        step = manager.current_step()  # not `place` when this group has been healed meanwhile: it was behind
        self._optimizer.step()
        error = manager.errored()
        if manager.current_step() == step:
            self._notice(str(error.original_exception) if error else "not committed")
            return
        if manager.current_step() < self._work.steps and self._final.exists():
            return  # made alone after the others had finished: no part of the training
        samples = self._data.sample_ids(place, rank, ranks) if manager.is_participating() else []
        if self._options.fixed_with_spares:
            self._record_as(manager.participating_rank())
        if self._recorder is not None:
            self._recorder.step(step, loss.item(), samples, replicas=manager.num_participants())

    def _rank_of_step(self) -> int:
        """With spares this waits for the quorum, which tells the rank. A spare computes any batch; none counts."""
        if not self._options.fixed_with_spares:
            return int(self._options.group)
        rank: int | None = self.manager.participating_rank()
        return self._options.group % self._work.ranks if rank is None else rank

    def _record_as(self, rank: int | None) -> None:
        if rank != self._rank:
            self._rank = rank
            self._recorder = None if rank is None else Recorder(self._folder, rank, self._work.ranks)

    def _notice_absence(self) -> None:
        """A death between two steps is no error for torchft: the next quorum is smaller."""
        members = self._group.size()
        if members < self._members:
            self._notice(f"{members} groups in the quorum, there were {self._members}")
        self._members = members

    def _notice(self, what: str) -> None:
        if self._recorder is not None:
            self._recorder.noticed(what)

    def _wait_for_all(self) -> None:
        """Whoever is started again finds the marks of all, and goes on at once."""
        marks = self._folder / "torchft-started"
        marks.mkdir(exist_ok=True)
        (marks / str(self._options.group)).touch()
        deadline = time.monotonic() + _START_PATIENCE
        while len(os.listdir(marks)) < self._options.groups and time.monotonic() < deadline:
            time.sleep(0.01)

    @property
    def _final(self) -> Path:
        return self._folder / "torchft-final.pt"

    def _save(self) -> None:
        """Before this group stops its heartbeats: others can form a quorum without it only when they can find this."""
        if not self._final.exists():
            unfinished = self._folder / f"torchft-final-{self._options.group}"
            torch.save(self.model.module.state_dict(), unfinished)
            unfinished.replace(self._final)


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    scenario, folder = told_by_runner()
    training = Training(scenario.work, folder, _options())
    training.run()
    training.manager.shutdown()
    logging.shutdown()
    os._exit(0)  # everything is recorded; the interpreter's own way out, past the threads of gloo, can take seconds


if __name__ == "__main__":
    main()
