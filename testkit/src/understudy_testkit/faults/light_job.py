"""A whole job without workers: a real coordinator process, and light hosts in a thread of this one that commit steps.

For claims about what a coordinator tells: all that it hears is what it would hear of real agents, and nothing of it
takes time. A rank can be lost, with a spare for it or without one, and the job can come to its end.
"""

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from understudy.foundation.ids import Generation, MemberId, StepNumber
from understudy.protocol import commands as cmd
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.positions import Position
from understudy.protocol.sentences import sentence
from understudy_testkit.faults import coordinators
from understudy_testkit.faults.assertions import NotProven
from understudy_testkit.faults.coordinators import CoordinatorProcess
from understudy_testkit.faults.light_hosts import Heard, LightHost, Meeting

_RANKS = 3
_STEP = 0.1  # seconds
_TELL_EVERY = 1.0  # seconds, as agents do
_READY_TIMEOUT = 60.0
_KILLED = Cause(kind=CauseKind.SIGNAL, detail="killed by signal 9", exit_code=-9)
_ENDED = Cause(kind=CauseKind.EXIT, detail="ended", exit_code=0)
_Result = TypeVar("_Result")


class Pace:
    """The step that all ranks of the job hold. It stands still while a generation is abandoned."""

    def __init__(self) -> None:
        self.step, self.stopped = 1, False


class SteppingReplica(LightHost):
    """Every rank is a replica of its own, so that the world can go on without it."""

    def __init__(self, name: str, ranks: int, spares: int, meeting: Meeting, heard: dict[int, Heard]) -> None:
        super().__init__(name, ranks, spares, meeting, heard)
        self.pace = Pace()

    def told(self, member: MemberId, command: cmd.ToMember) -> None:
        match command:
            case cmd.AssignRank(generation=generation, rank=rank, founding=True):
                self.members[member] = rank
                self.client.handle(
                    ev.MemberEstablished(
                        at=0.0,
                        member=member,
                        generation=generation,
                        twin_key="all",
                        holdings=(1,),
                        replica=(rank,),
                    )
                )
            case cmd.AbandonGeneration(generation=generation):
                self.pace.stopped = True
                position = Position(holds=StepNumber(self.pace.step))
                self.client.handle(
                    ev.PositionReported(at=0.0, member=member, generation=generation, position=position, twin_key="all")
                )
            case cmd.ResumeAt():
                self.pace.stopped = False
                super().told(member, command)
            case cmd.ReleaseMembers():
                self.lose(member, _ENDED)
            case _:
                super().told(member, command)

    def stop(self, stop: cmd.StopJob) -> None:
        super().stop(stop)
        asyncio.get_running_loop().create_task(self.client.close(sentence(stop.reason)))


@dataclass
class LightJob:
    """One rank per host. Its methods may be called from any thread but that of `loop`."""

    name: str
    coordinator: CoordinatorProcess
    token: str
    with_spare: bool
    loop: asyncio.AbstractEventLoop
    hosts: list[SteppingReplica] = field(default_factory=list)
    pace: Pace = field(default_factory=Pace)
    moving: "asyncio.Task[None] | None" = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.coordinator.http_port}"

    def begin(self) -> None:
        """Its hosts come. Returns when it trains."""
        address = self.coordinator.find(r"listening on (\S+) ", _READY_TIMEOUT)
        meeting = Meeting(address=address, token=self.token, world=_RANKS, job=self.name)
        self._look(lambda: self._begin(meeting))
        self._wait(lambda: self._status()["stage"] == "training", "the first generation")

    def lose_a_rank(self) -> None:
        """And wait until the world goes on, with a spare in its place or without it."""
        before = int(self._status()["generation"])
        self._look(self._kill)
        self._wait(lambda: self._is_after(before), "the world to go on")

    def finish(self) -> None:
        """Every rank has committed its last step, and its script ends. Returns when the coordinator has ended."""
        generation = Generation(int(self._status()["generation"]))
        self._look(lambda: self._finish(generation))
        try:
            code = self.coordinator.process.wait(_READY_TIMEOUT)
        except Exception as error:
            raise NotProven(f"{self.name}: the coordinator did not end with its job") from error
        if code != 0:
            raise NotProven(f"{self.name}: the coordinator ended with {code}")

    def kill_coordinator(self) -> None:
        self.coordinator.process.kill()
        self.coordinator.process.wait(10)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _status(self) -> dict[str, Any]:
        return self.coordinator.status("/v1/job")

    def _is_after(self, generation: int) -> bool:
        status = self._status()
        return status["stage"] == "training" and int(status["generation"]) > generation

    def _wait(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT
        while not true():
            if time.monotonic() > deadline:
                raise NotProven(f"{self.name}: waited {_READY_TIMEOUT:g} s for {what}: {self._status()}")
            time.sleep(0.05)

    def _look(self, act: Callable[[], _Result]) -> _Result:
        async def ask() -> _Result:
            return act()

        return asyncio.run_coroutine_threadsafe(ask(), self.loop).result(30.0)

    def _begin(self, meeting: Meeting) -> None:
        self.hosts += [SteppingReplica(f"h{number}", 1, 0, meeting, {}) for number in range(_RANKS)]
        if self.with_spare:
            self.hosts.append(SteppingReplica("s0", 0, 2, meeting, {}))
        for host in self.hosts:
            host.pace = self.pace
            host.client.start()
        self.moving = asyncio.create_task(self._move())

    async def _move(self) -> None:
        """Steps are committed, and every host that has ranks tells it now and then."""
        told = time.monotonic()
        while True:
            await asyncio.sleep(_STEP)
            self.pace.step += not self.pace.stopped
            if time.monotonic() - told >= _TELL_EVERY:
                told = time.monotonic()
                for host in {id(host): host for host, _ in self._ranks()}.values():
                    host.client.advanced(self.pace.step, self.pace.step)

    async def end(self) -> None:
        if self.moving is not None:
            self.moving.cancel()
        for host in self.hosts:
            await host.client.close("the claim ends")

    def _ranks(self) -> Iterator[tuple[SteppingReplica, MemberId]]:
        for host in self.hosts:
            yield from ((host, member) for member, rank in list(host.members.items()) if rank is not None)

    def _kill(self) -> None:
        host, member = next(self._ranks())
        host.lose(member, _KILLED)

    def _finish(self, generation: Generation) -> None:
        for host, member in self._ranks():
            host.client.handle(ev.MemberFinished(at=0.0, member=member, generation=generation))


@contextlib.contextmanager
def running(folder: Path, name: str, *, spare: bool) -> Iterator[LightJob]:
    """`name`: of the job, as its metrics and its coordinator have it. `spare`: a further host keeps some warm."""
    folder.mkdir(parents=True)
    token = secrets.token_hex(16)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    with coordinators.running(folder, "coordinator", token, "--job", name) as coordinator:
        thread.start()
        job = LightJob(name, coordinator, token, spare, loop)
        try:
            yield job
        finally:
            asyncio.run_coroutine_threadsafe(job.end(), loop).result(30.0)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10.0)
