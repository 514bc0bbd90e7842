"""Jobs of two hosts and two coordinators that a test plays minute by minute, while somebody scrapes them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.api.recorded_series import INTERVAL, Recording
from tests.coordinator.leader_play import Cluster, Host
from tests.coordinator.lines import TOKEN

from understudy.api.event_stream import EventStream
from understudy.api.job import ManyHosts
from understudy.api.metrics import Metrics
from understudy.coordinator.leader import Leader
from understudy.coordinator.service import Service
from understudy.coordinator.state_store import MemoryStateStore
from understudy.foundation.ids import Generation, MemberId, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.positions import Position
from understudy.protocol.stages import Stage
from understudy.wire import host_messages as wire

_STEPS = 60  # in an interval


@dataclass(frozen=True)
class Ends:
    """Certificates of which only the end matters, in seconds by the clock of the recording."""

    at: float

    def ends(self) -> dict[str, float]:
        return {"cert.pem": self.at}


class Seat:
    """One coordinator: it leads or stands by, and its API answers or does not."""

    def __init__(self, job: "ScrapedJob") -> None:
        self.service = Service(job.name, TOKEN)
        self.event_stream = EventStream()
        interface = ManyHosts(self.service, clock=job.clock, event_stream=self.event_stream)
        self.metrics = Metrics(interface, job.clock, job.certificates)  # type: ignore[arg-type]  # no others need be made
        self.answers = True


class ScrapedJob(Cluster):
    """`moves`: it commits steps. Time passes only by the test's hand: no timer of the leader runs."""

    def __init__(
        self, name: str, *, spare: bool = True, replicas: bool = True, certificates: "Ends | None" = None
    ) -> None:
        super().__init__()
        self.certificates = certificates
        self.name, self.moves, self.step = name, True, 0
        self.first, self.second = Seat(self), Seat(self)
        self._with_spare, self._replicas = spare, replicas

    @property
    def hosts(self) -> tuple[Host, ...]:
        return (self.spare, self.a, self.b) if self._with_spare else (self.a, self.b)

    @property
    def stage(self) -> Stage:
        assert self.leader.coordinator is not None
        return self.leader.coordinator.machine.stage

    async def begin(self) -> None:
        """Until it trains: m-0 on a, m-1 on b, each a replica of its own unless it cannot degrade, and m-2, a spare."""
        await self.lead_from(self.first)
        await self.attend()
        for host in self.hosts:
            for member in host.living:
                await self.say(host, ev.MemberConnected(at=self.clock.now(), member=MemberId(member)))
        if self._with_spare:
            await self.say(self.spare, ev.MemberParked(at=0.0, member=MemberId("m-2")))
        for rank, host in enumerate((self.a, self.b)):
            established = ev.MemberEstablished(
                at=self.clock.now(),
                member=MemberId(host.living[0]),
                generation=Generation(1),
                twin_key="k",
                replica=(Rank(rank),) if self._replicas else (),
            )
            await self.say(host, established)
        assert self.stage is Stage.TRAINING

    async def lead_from(self, seat: Seat) -> Leader:
        term = await self.state_store.lead("boss:1")
        self.leader = Leader(
            term, state_store=self.state_store, clock=self.clock, journals=(self.journal, seat.event_stream)
        )
        self.leader._set_timer = lambda *_: None  # type: ignore[method-assign]
        await self.leader.begin()
        seat.service.leader = self.leader
        return self.leader

    async def take_over(self) -> None:
        """The first coordinator is gone, and the second one goes on with what was kept."""
        assert isinstance(self.state_store, MemoryStateStore)
        shared = self.state_store._shared
        self.state_store.depose()
        self.state_store, self.first.service.leader = MemoryStateStore(shared), None
        await self.lead_from(self.second)
        await self.attend()

    def pass_time(self) -> None:
        self.clock.advance_to(self.clock.now() + INTERVAL)
        self.step += _STEPS if self.moves else 0
        for host in self.hosts:
            if host.line is not None and not host.line.closed and host.living and self.step:
                self.leader.heard(host.line, wire.Advanced(smallest=self.step, largest=self.step))

    async def report_all(self, *hosts: Host) -> None:
        """They hold the same step, so that the verdict is to go on there."""
        assert self.leader.coordinator is not None
        generation = self.leader.coordinator.machine.generation
        for host in hosts:
            position = Position(holds=StepNumber(self.step))
            member = MemberId(host.living[0])
            await self.say(
                host,
                ev.PositionReported(
                    at=self.clock.now(), member=member, generation=generation, position=position, twin_key="k"
                ),
            )

    async def resume_all(self, *hosts: Host) -> None:
        assert self.leader.coordinator is not None
        generation = self.leader.coordinator.machine.generation
        for host in hosts:
            member = MemberId(host.living[0])
            await self.say(host, ev.MemberResumed(at=self.clock.now(), member=member, generation=generation))
        assert self.stage is Stage.TRAINING

    async def swap(self) -> None:
        """m-1 on b is lost, and m-2 takes its rank."""
        await self.lose(self.b, "m-1")
        assert self.leader.coordinator is not None
        generation = self.leader.coordinator.machine.generation
        prepared = ev.MemberPrepared(at=self.clock.now(), member=MemberId("m-2"), generation=generation, twin_key="k")
        await self.say(self.spare, prepared)
        await self.report_all(self.a)
        await self.resume_all(self.a, self.spare)

    async def finish(self) -> None:
        """Every rank commits its last step and ends its script."""
        assert self.leader.coordinator is not None
        generation = self.leader.coordinator.machine.generation
        for host in (self.a, self.b):
            member = MemberId(host.living[0])
            await self.say(host, ev.MemberFinished(at=self.clock.now(), member=member, generation=generation))

    def pages(self) -> dict[str, bytes | None]:
        seats = {f"{self.name}-1:8080": self.first, f"{self.name}-2:8080": self.second}
        return {name: seat.metrics.page() if seat.answers else None for name, seat in seats.items()}


class Scene:
    def __init__(self, *jobs: ScrapedJob) -> None:
        self.jobs, self.recording = jobs, Recording()

    async def minutes(self, count: float) -> None:
        for _ in range(int(count * 60 / INTERVAL)):
            for job in self.jobs:
                job.pass_time()
                await job.settle()
            self.recording.scrape({name: page for job in self.jobs for name, page in job.pages().items()})

    def expect(self, *alerts: tuple[str, str]) -> None:
        self.recording.expect(*alerts)


def play(folder: Path, story: Callable[[Scene], Awaitable[None]], *jobs: ScrapedJob) -> None:
    scene = Scene(*jobs)

    async def whole() -> None:
        async with asyncio.timeout(120.0):
            for job in jobs:
                await job.begin()
            await story(scene)

    asyncio.run(whole())
    scene.recording.judge(folder)
