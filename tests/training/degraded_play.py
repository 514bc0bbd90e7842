"""A world of real ranks that goes on without some of them, and becomes whole again. Started by `test_degraded_world`.

One process loads torch and forks the ranks of each case. What the coordinator and the recovery would do is done here by
direct calls, in the order in which a recovery has to make them (docs/degrade.md). Each rank also trains a plain model
alone on the batches of all ranks, and compares.

Prints one JSON object: case -> what its ranks found.
"""

import faulthandler
import functools
import json
import multiprocessing
import os
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from tests.ledger.made_up import WrittenAtOnce
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from understudy.foundation.ids import Generation, Rank, StepNumber
from understudy.groups.engines import Engines
from understudy.groups.families.gloo import Gloo
from understudy.groups.fence import Fences
from understudy.groups.store import InterruptibleStore
from understudy.groups.world import World
from understudy.ledger.exactly_once import prove
from understudy.ledger.reading import read_run
from understudy.ledger.records import RunInfo
from understudy.ledger.writing import RecordLog, steps_file
from understudy.protocol.sharing_out import Reduction
from understudy.state.buffers import ChangingBuffers
from understudy.state.peer_memory.snapshots import Snapshots
from understudy.state.protected_state import Protected
from understudy.training.body import Body
from understudy.training.degraded.mode import DegradedMode
from understudy.training.job import Job
from understudy.training.recovery.probation import Probation
from understudy.training.recovery.tail import TailResults
from understudy.training.running_ahead import NeverAhead
from understudy.training.shutdown import Shutdown
from understudy.training.small_state import SmallState
from understudy.training.snapshots.checkpointing import Checkpointing
from understudy.training.snapshots.divergence import DivergenceSnapshots
from understudy.training.snapshots.peer_memory import PeerMemory
from understudy.training.snapshots.peer_replication import PeerReplication
from understudy.training.status import MemberStatus
from understudy.training.step_inspector import StepInspector
from understudy.training.step_ledger import StepLedger

WIDTH, RATE, LIMIT = 7, 0.1, 0.05
STEPS = 6  # 0 1 whole, 2 3 degraded, 4 5 whole again; the batch of step 4 is that of step 1
TIMEOUT = timedelta(seconds=40)


@dataclass(frozen=True, kw_only=True)
class Case:
    ranks: int
    absent: tuple[int, ...]
    batch: int = 5
    shards: int = 0  # 0: DDP
    passes: int = 1  # backward passes per body, or fewer if it has fewer samples
    zero_first: bool = False
    reduction: Reduction = "mean"
    engine: dict[str, Any] = field(default_factory=lambda: {"bucket_cap_mb": 0.0005})


CASES = {
    "ddp 3 to 2": Case(ranks=3, absent=(1,)),
    "ddp 4 to 3, rank 0 away": Case(ranks=4, absent=(0,), zero_first=True),
    "ddp 4 to 2": Case(ranks=4, absent=(1, 2), engine={"gradient_as_bucket_view": True}),
    "ddp 5 to 3": Case(ranks=5, absent=(0, 3), passes=2, batch=4),
    "ddp 4 to 1": Case(ranks=4, absent=(0, 1, 3)),
    "ddp, fewer samples than takers": Case(ranks=4, absent=(3,), batch=2, engine={"find_unused_parameters": True}),
    "ddp, sum": Case(ranks=3, absent=(2,), reduction="sum"),
    "hsdp 2x2 to 1x2": Case(ranks=4, absent=(2, 3), shards=2),
    "hsdp 3x2 to 2x2": Case(ranks=6, absent=(0, 1), shards=2, zero_first=True, passes=3),
}


def batch_of(case: Case, step: int, share: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(1000 * (step % 3) + share)
    return torch.randn(case.batch, WIDTH, generator=source), torch.randn(case.batch, 1, generator=source)


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Status(MemberStatus):
    """Of a member without agent: nothing is shown, and no generation is abandoned unless a test says so."""

    def __init__(self) -> None:
        assignment = SimpleNamespace(founding=True, generation=1, founded_in=1)
        self.control = SimpleNamespace(abandoned=Generation(0), assignment=assignment)
        page = SimpleNamespace(show=lambda *_: None, show_compute=lambda *_: None)
        super().__init__(self.control, page)  # type: ignore[arg-type]


class KnownReplicas:
    """Ranks that are established at once, and meet at a fence."""

    def __init__(self, status: MemberStatus) -> None:
        self._status = status
        self.fenced: bool | None = None
        self.keep_own = False

    def watch(self) -> None:
        return

    def all_have_learnt(self) -> bool:
        return True

    def establish(self) -> None:
        self._status.established = self.fenced = True


class StandIn(SimpleNamespace):
    """A member without agent and coordinator: what jobs and steps ask of it."""

    def __init__(self, case: Case, rank: int, folder: str, world: World) -> None:
        super().__init__()
        self.case, self.world = case, world
        self.status, self.ahead = Status(), NeverAhead()
        status = self.status
        protected, engines, inspector = Protected(), Engines(), StepInspector()
        self.control = SimpleNamespace(begin_step=lambda _: True, released=True, note=self.nothing)
        lines = RecordLog(WrittenAtOnce(steps_file(Path(folder, "ledger"), f"m-{rank}")))
        self.ledger = StepLedger(lines, f"m-{rank}", rank, case.ranks, 0)
        self.fences = Fences(folder, rank, case.ranks)
        self.degraded = DegradedMode(engines, protected, inspector)
        self.errors = SimpleNamespace(report=self._print_error, failed=False)
        self.contact = SimpleNamespace(
            lost=self._lost_contact, await_word=self.nothing, come_to_rest=int, look_at=self.nothing
        )
        self.replicas = KnownReplicas(status)
        self.recovery = SimpleNamespace(
            recover=self.nothing, come_back_to_loop=self.nothing, know_what_is_held=self.nothing
        )
        self.sections = SimpleNamespace(seed=None)
        rank_local: Any = SimpleNamespace(begin=self.nothing, arrive=self.nothing, exists=False)
        late_fence: Any = SimpleNamespace(undo=None, agree=self.nothing, look_at=self.nothing, committed=self.nothing)
        self.rank_local = rank_local
        self.body = Body(
            protected=protected,
            small=SmallState(protected),
            engines=engines,
            buffers=ChangingBuffers(),
            inspector=inspector,
            rank_local=rank_local,
            rank_local_buffers=rank_local,
            late_fence=late_fence,
        )
        replication = PeerReplication(folder, 1, rank, "")
        self.peer_memory = PeerMemory(
            Snapshots(folder, 1, rank, 0),
            replication,
            status=status,
            world=world,
            contact=self.contact,  # type: ignore[arg-type]
            protected=protected,
            rank_local=rank_local,
            ledger=self.ledger,
            note=self.nothing,
        )
        self.checkpoints = Checkpointing(
            None,
            0,
            "",
            status=status,
            world=world,
            fences=self.fences,
            protected=protected,
            rank_local=rank_local,
            ledger=self.ledger,
            note=self.nothing,
        )
        self.probation = Probation(
            control=self.control,  # type: ignore[arg-type]
            status=status,
            protected=protected,
            rank_local=rank_local,
            ledger=self.ledger,
            replicas=self.replicas,  # type: ignore[arg-type]
            peer_memory=self.peer_memory,
            divergence=DivergenceSnapshots(0, lambda: None),
        )
        self.tail = TailResults(self.nothing)
        self.shutdown = Shutdown(
            rank=Rank(rank),
            control=self.control,  # type: ignore[arg-type]
            status=status,
            errors=self.errors,  # type: ignore[arg-type]
            recovery=self.recovery,  # type: ignore[arg-type]
            peer_memory=self.peer_memory,
            replication=replication,
            checkpoints=self.checkpoints,
        )

    def _lost_contact(self) -> bool:
        return self.status.abandoned or bool(self.world.connections.broken())

    def _print_error(self, error: BaseException, _step: int | None) -> None:
        print(f"rank {self.world.rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    def nothing(self, *_: Any) -> None:
        return

    def form(self, generation: int, absent: tuple[int, ...]) -> None:
        """What a recovery does, after the verdict."""
        self.status.generation = Generation(generation)
        self.world.regroup(self.status.generation, absent)
        show = functools.partial(self.world.show_to_group, self.status.generation)
        self.body.engines.reset(show, trained=True)
        self.fences.absent = absent
        self.degraded.go_without(absent)


class Play:
    """One rank of one case."""

    def __init__(self, case: Case, rank: int, port: int, folder: str) -> None:
        torch.set_default_dtype(torch.float64)
        self.case, self.rank = case, rank
        store = InterruptibleStore("127.0.0.1", port, lambda: False, TIMEOUT)
        self.world = World(
            family=Gloo(),
            rank=Rank(rank),
            size=case.ranks,
            founded_in=Generation(1),
            store=store,
            abandoned=lambda: False,
            timeout=TIMEOUT,
            device=torch.device("cpu"),
        )
        self.world.found()
        self.model = self._engine(build())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=1.0)
        self.member = StandIn(case, rank, folder, self.world)
        self.job = Job(
            rank=rank,
            local_rank=rank,
            world_size=case.ranks,
            seed=0,
            tracked=False,
            device=torch.device("cpu"),
            member=self.member,  # type: ignore[arg-type]
        )
        self.job.protect(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            data=lambda step, share, _shares: batch_of(case, step, share),
            reduction=case.reduction,
        )
        self.alone = build()
        self.bodies: list[int] = []  # how often the body ran, by step
        self.found: dict[str, Any] = {"differences": [], "bits": [], "names": []}

    def _engine(self, model: nn.Sequential) -> nn.Module:
        if not self.case.shards:
            return DistributedDataParallel(model, **self.case.engine)
        mesh = init_device_mesh(
            "cpu", (self.case.ranks // self.case.shards, self.case.shards), mesh_dim_names=("replica", "shard")
        )
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)  # type: ignore[return-value]

    # -- the script ---------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        for step in self.job.steps(STEPS):
            with step:
                self._body(step)
            if step.committed:
                self._compare(step.number)
                if step.number == 1:
                    self._leave()
                elif step.number == 3:
                    self._return()
        self.found["bodies"] = self.bodies
        self.found["scheduled"] = self.scheduler.last_epoch
        self.found["objection"] = self.member.degraded.objection()
        return self.found

    def _body(self, step: Any) -> None:
        self.bodies.extend([0] * (step.number + 1 - len(self.bodies)))
        self.bodies[step.number] += 1
        if self.case.zero_first:
            self.optimizer.zero_grad()
        x, y = step.batch()
        passes = min(self.case.passes, len(x))
        for some in range(passes):
            loss = self._loss(self.model, x, y) * ((some + 1) / sum(range(passes + 1)))
            loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), LIMIT)
        assert all(parameter.grad is not None for parameter in self.model.parameters())
        self.gradients = [local(p.grad).clone() for p in self.model.parameters() if p.grad is not None]
        self.optimizer.step()
        self.scheduler.step()
        if not self.case.zero_first:
            self.optimizer.zero_grad()

    def _loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        return nn.functional.mse_loss(model(x), y, reduction=self.case.reduction)

    # -- what the recovery would do ------------------------------------------------------------------------------------

    def _leave(self) -> None:
        if self.rank not in self.case.absent:
            self.member.form(2, self.case.absent)
            names = [(dist.get_rank(group), dist.get_world_size(group)) for _, group in self.world.groups()]
            everybody: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everybody, self.rank)
            self.found["names"] = [names, everybody, self.world.place_of(everybody[-1])]
            return
        self.member.status.holds = StepNumber(4)  # takes no part until the world is whole again
        self._return()

    def _return(self) -> None:
        """All ranks begin step 4 with the state in which step 1 began."""
        self.member.form(3, ())
        self._set_state(self.before_step_1)
        self.found["whole again"] = [
            (dist.get_rank(group), dist.get_world_size(group)) for _, group in self.world.groups()
        ] == self.found["at first"]

    def _set_state(self, state: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameter, other, value in zip(self.model.parameters(), self.alone.parameters(), state, strict=True):
                local(parameter).copy_(self._shard(value))
                other.copy_(value)

    # -- comparing ----------------------------------------------------------------------------------------------------

    def _compare(self, step: int) -> None:
        """With a plain model that sees the batches of all ranks."""
        self.found.setdefault(
            "at first", [(dist.get_rank(group), dist.get_world_size(group)) for _, group in self.world.groups()]
        )
        self.alone.zero_grad()
        for share in range(self.case.ranks):
            (self._loss(self.alone, *batch_of(self.case, step, share)) / self.case.ranks).backward()
        norm = nn.utils.clip_grad_norm_(self.alone.parameters(), LIMIT)
        assert norm > LIMIT, "the case must clip"
        wanted = [self._shard(p.grad) for p in self.alone.parameters() if p.grad is not None]
        self.found["differences"].append(_distance(self.gradients, wanted))
        with torch.no_grad():
            for parameter in self.alone.parameters():
                assert parameter.grad is not None
                parameter.sub_(RATE * parameter.grad)
        state = [self._shard(parameter.detach()) for parameter in self.alone.parameters()]
        self.found["differences"].append(_distance([local(p.detach()) for p in self.model.parameters()], state))
        if step == 0:
            self.before_step_1 = [parameter.detach().clone() for parameter in self.alone.parameters()]
            self._set_state(self.before_step_1)  # to the last bit
        if step == 1:
            self.whole_gradients = self.gradients
        if step == 4:
            pairs = zip(self.gradients, self.whole_gradients, strict=True)
            self.found["bits"] = all(torch.equal(one, two) for one, two in pairs)

    def _shard(self, whole: torch.Tensor) -> torch.Tensor:
        if not self.case.shards:
            return whole
        pieces = torch.chunk(whole, self.case.shards, dim=0)
        place = self.rank % self.case.shards
        return pieces[place] if place < len(pieces) else whole[:0]


def _distance(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    one, two = (torch.cat([tensor.flatten() for tensor in tensors]) for tensors in (found, wanted))
    return float((one - two).norm() / two.norm())


def _rank(name: str, rank: int, port: int, folder: str, tell: Any) -> None:
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(30)
    try:
        tell.put((rank, Play(CASES[name], rank, port, folder).run()))
    except BaseException as error:
        tell.put((rank, {"error": f"{type(error).__name__}: {error}"}))
    finally:
        os._exit(0)


def _host_store(tell: Any) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    tell.put(store.port)
    tell.get()  # until the case is over


def _play(name: str) -> dict[str, Any]:
    """Nothing here may start a thread: the next case forks again."""
    fork = multiprocessing.get_context("fork")
    tell, line = fork.SimpleQueue(), fork.SimpleQueue()
    case = CASES[name]
    host = fork.Process(target=_host_store, args=(line,))
    host.start()
    port = line.get()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [fork.Process(target=_rank, args=(name, rank, port, folder, tell)) for rank in range(case.ranks)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(40)
            process.kill()
        host.kill()
        told = {}
        while not tell.empty():
            rank, found = tell.get()
            told[rank] = found
        run = RunInfo(job=name, command=(), world_size=case.ranks, spares=0, digest_every=0, started="", versions={})
        Path(folder, "run.json").write_text(json.dumps({key: getattr(run, key) for key in run.__struct_fields__}))
        proof = prove(read_run(folder))
    return {"ranks": told, "proof": [proof.holds, list(proof.degraded), proof.sentence()]}


def main(names: list[str]) -> None:
    print(json.dumps({name: _play(name) for name in names}))


if __name__ == "__main__":
    main(sys.argv[1:] or list(CASES))
