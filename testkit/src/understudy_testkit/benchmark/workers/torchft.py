"""One rank of a replica group under torchft: its Manager, ProcessGroupGloo, DistributedDataParallel and Optimizer,
put together as in its example train_ddp.py (`ProcessGroupGloo` with its own timeout, `PGTransport` for healing).

With ddp a group has one rank. With hsdp it has two, which share a replica by FSDP2; gradients are then averaged over
the groups in FSDP's all-reduce hook, as in torchft's fsdp_test.py.

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
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.checkpointing.pg_transport import PGTransport
from torchft.manager import WorldSizeMode

from understudy_testkit.benchmark.recording import Recorder
from understudy_testkit.benchmark.scenario import Work
from understudy_testkit.benchmark.workload import (
    build_data,
    build_model,
    build_optimizer,
    digest_of,
    loss_of,
    told_by_runner,
)

_START_TIMEOUT = 120.0


def _options() -> argparse.Namespace:
    """The defaults are those of train_ddp.py, or of torchft where train_ddp.py says nothing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--group", type=int, required=True, help="the number of this replica group")
    parser.add_argument("--groups", type=int, required=True, help="how many there are, spares included")
    parser.add_argument("--shard", type=int, default=0, help="the number of this rank in its group")
    parser.add_argument("--shards", type=int, default=1, help="ranks per group")
    parser.add_argument("--store-port", type=int, required=True, help="of the group's store; its first rank hosts it")
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
        first = options.shard == 0  # torchrun would host the store
        self._store = TCPStore("localhost", options.store_port, is_master=first, wait_for_workers=False)
        self._group = ProcessGroupGloo(timeout=timedelta(seconds=options.group_timeout))
        self._members = 0  # of the quorum, spares and the healing included
        self.manager = self._make_manager()
        self._weights = build_model(work)
        self.model = self._distribute(self._weights)
        self._optimizer = Optimizer(self.manager, build_optimizer(self.model))
        self._data = build_data(work)
        self._recorder: Recorder | None = None
        self._rank: int | None = None
        if not options.fixed_with_spares:
            self._record_as(self._fixed_rank)

    def run(self) -> None:
        self._wait_for_all()
        finished = self._others_have_finished()
        while self.manager.current_step() < self._work.steps and not finished:
            finished = not self._step() and self._others_have_finished()
        if finished:
            _load_shards(self._weights, torch.load(self._final))
        self._save()
        if self._recorder is not None:
            self._recorder.end(digest_of(self._weights))

    def _distribute(self, weights: nn.Sequential) -> nn.Module:
        if self._options.shards == 1:
            model: nn.Module = DistributedDataParallel(self.manager, weights)
            return model
        store = PrefixStore("group", self._store)
        dist.init_process_group("gloo", store=store, rank=self._options.shard, world_size=self._options.shards)
        mesh = init_device_mesh("cpu", (self._options.shards,), mesh_dim_names=("shard",))
        for layer in (*weights, weights):
            fully_shard(layer, mesh=mesh).set_all_reduce_hook(lambda gradient: self.manager.allreduce(gradient).wait())
        return weights

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
            use_async_quorum=options.shards == 1,  # FSDP2 gathers parameters while state would be read
            rank=options.shard,
            world_size=options.shards,
            store_addr="localhost",
            store_port=options.store_port,
        )

    def _state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optim": self._optimizer.state_dict()}

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optim"])

    def _step(self) -> bool:
        """Whether it was committed."""
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
            return False
        early = manager.current_step() < self._work.steps
        if early and manager.num_participants() < self._options.groups and self._others_have_finished():
            return False  # made alone after the others had finished: no part of the training
        samples = self._data.sample_ids(place, rank, ranks) if manager.is_participating() else []
        if self._options.fixed_with_spares:
            self._record_as(manager.participating_rank())
        if self._recorder is not None:
            replicas = manager.num_participants() * self._options.shards
            self._recorder.step(step, loss.item(), samples, replicas=replicas)
        return True

    @property
    def _fixed_rank(self) -> int:
        return int(self._options.group * self._options.shards + self._options.shard)

    def _rank_of_step(self) -> int:
        """With spares this waits for the quorum, which tells the rank. A spare computes any batch; none counts."""
        if not self._options.fixed_with_spares:
            return self._fixed_rank
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
        """A process that is started again finds the marks of all, and goes on at once."""
        marks = self._folder / "torchft-started"
        marks.mkdir(exist_ok=True)
        (marks / str(self._fixed_rank)).touch()
        deadline = time.monotonic() + _START_TIMEOUT
        while len(os.listdir(marks)) < self._options.groups * self._options.shards and time.monotonic() < deadline:
            time.sleep(0.01)

    @property
    def _final(self) -> Path:
        return self._folder / f"torchft-final-{self._options.shard}.pt"

    def _others_have_finished(self) -> bool:
        """The ranks of a group must answer alike, so they ask each other."""
        seen = torch.tensor([int(self._final.exists())])
        if self._options.shards > 1:
            dist.all_reduce(seen, op=dist.ReduceOp.MIN)
        return bool(seen)

    def _save(self) -> None:
        """Before this group stops its heartbeats: others can form a quorum without it only when they can find this."""
        if not self._final.exists():
            unfinished = self._folder / f"torchft-final-of-{self._fixed_rank}"
            torch.save({name: _own(value) for name, value in self._weights.state_dict().items()}, unfinished)
            unfinished.replace(self._final)


def _own(value: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a parameter."""
    return value.to_local() if isinstance(value, DTensor) else value


def _load_shards(model: nn.Module, saved: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, value in model.state_dict().items():
            _own(value).copy_(saved[name])


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
