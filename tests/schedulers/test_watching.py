"""The watch of nodes asks the machine, takes a refusal, and tries again."""

import asyncio
from collections.abc import Collection

from tests.protocol.cluster_play import SPARE, A, B, cluster

from understudy.errors import SchedulerError
from understudy.foundation.ids import HostId
from understudy.protocol.job import JobMachine
from understudy.protocol.requests import DrainHost, KeepSpares, Request, UndrainHost
from understudy.schedulers.node_rules import NodeSeen, Verdict
from understudy.schedulers.watching import Watch


class Played:
    """A job that this process leads, and a scheduler that says what a test has written."""

    def __init__(self) -> None:
        self.led: JobMachine | None = cluster()
        self.time, self.asked, self.said = 5.0, list[Request](), list[str]()
        self.nodes: dict[HostId, Verdict] = {}
        self.away = False
        self.watch = Watch(self, "Slurm", self.look, self.said.append)

    def machine(self) -> JobMachine | None:
        return self.led

    def now(self) -> float:
        return self.time

    def handle(self, request: Request) -> None:
        assert self.led is not None
        self.asked.append(request)
        self.led.handle(request)

    async def look(self, hosts: Collection[HostId]) -> tuple[NodeSeen, ...]:
        if self.away:
            raise SchedulerError("no answer")
        assert set(hosts) == {A, B, SPARE}
        return tuple(NodeSeen(host=host, verdict=verdict, state="x") for host, verdict in self.nodes.items())

    def once(self) -> None:
        self.time += 5.0
        asyncio.run(self.watch.once())


def test_a_drain_and_its_end() -> None:
    job = Played()
    job.nodes = {A: Verdict.WANTED_BACK, B: Verdict.IN_USE}
    job.once()
    job.once()
    (drain,) = job.asked
    assert isinstance(drain, DrainHost) and drain.host == A and job.led is not None and job.led.hosts.by_id[A].draining
    job.nodes[A] = Verdict.UNKNOWN
    job.once()
    assert len(job.asked) == 1
    job.nodes[A] = Verdict.IN_USE
    job.once()
    job.once()
    assert isinstance(job.asked[1], UndrainHost) and len(job.asked) == 2 and not job.led.hosts.by_id[A].draining


def test_what_an_operator_drains_stays_drained() -> None:
    job = Played()
    assert job.led is not None
    job.led.handle(DrainHost(at=5.0, host=A, reason="maintenance"))
    job.nodes = {A: Verdict.IN_USE}
    job.once()
    assert not job.asked


def test_a_refusal_is_said_once_and_asked_again() -> None:
    job = Played()
    assert job.led is not None
    job.led.handle(KeepSpares(at=4.0, host=SPARE, spares=0, reason="x"))
    job.nodes = {A: Verdict.WANTED_BACK}
    job.once()
    job.once()
    assert not job.asked and len(job.said) == 1 and "refused for now" in job.said[0]


def test_a_scheduler_that_is_away_is_said_once() -> None:
    job = Played()
    job.away = True
    job.once()
    job.once()
    assert job.said == ["Slurm cannot be asked for nodes, trying again: no answer"]
    job.away = False
    job.nodes = {A: Verdict.WANTED_BACK}
    job.once()
    assert len(job.asked) == 1


def test_only_a_leader_asks() -> None:
    job = Played()
    job.led, job.nodes = None, {A: Verdict.WANTED_BACK}
    job.once()
    assert not job.asked
