"""Hosts without processes: real agents' lines to a real coordinator, and members that only answer. For load tests.

`python -m understudy_testkit.faults.light_hosts --address H:P --count 1000 ...` runs many of them in one process. It
reads commands from its input and answers on its output, one JSON object per line (`fleet` speaks with it):

    look        how many are connected, and the newest generation that any host here has heard of
    kill        one member with a rank ends, as if by a signal
    report G    when generation G was heard of here: first and last, and the same for the orders to resume
"""

import argparse
import asyncio
import json
import resource
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from understudy.agent.coordinator_client import CoordinatorClient, Introduction
from understudy.foundation.clock import SystemClock
from understudy.foundation.ids import Generation, HostId, MemberId, Rank, StepNumber
from understudy.protocol import commands as cmd
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.policy import Policy
from understudy.protocol.positions import Position
from understudy.protocol.sentences import sentence
from understudy.wire.certificates import Certificates

_HOLDS = StepNumber(5)


@dataclass(slots=True)
class Heard:
    """When the members of this process were told of a generation, by the clock that all processes of a host share."""

    abandoned: list[float] = field(default_factory=list)
    resumed: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where hosts meet their coordinator, and how many ranks the job has. `policy`: one rank per host unless given."""

    address: str
    token: str
    world: int
    certificates: Certificates | None = None
    job: str = "job"
    policy: Policy | None = None


class LightHost:
    """One agent whose workers are a few lines of code. Implements `coordinator_client.HostEffects`. `said`: what its
    log would hold. `lines`: how often a coordinator has taken it."""

    def __init__(self, name: str, ranks: int, spares: int, meeting: Meeting, heard: dict[int, Heard]) -> None:
        self.members: dict[MemberId, int | None] = {}  # with their ranks
        self.stopped = False
        self.said: list[str] = []
        self.lines = 0
        self._heard, self._name = heard, name
        introduction = Introduction(
            job=meeting.job,
            token=meeting.token,
            host=name,
            ranks=ranks,
            spares=spares,
            place=None,
            settings=msgspec.to_builtins(meeting.policy or policy_for(meeting.world)),
            store=lambda: "127.0.0.1:1",
            members=lambda: list(self.members),
        )
        self.client = CoordinatorClient(
            introduction,
            effects=self,
            addresses=[meeting.address],
            certificates=meeting.certificates,
            clock=SystemClock(),
            tell=self._keep,
        )

    def _keep(self, code: str, text: str, /, **_details: object) -> None:
        self.said.append(text)
        self.lines += code == "connected"

    def carry_out(self, command: cmd.ToAgent) -> None:
        match command:
            case cmd.StartMember(member=member, seat=seat):
                self._start(member, None if seat is None else seat.rank)
            case cmd.WatchClosely():  # its members are always well
                self.client.handle(ev.ActivityObserved(at=0.0, sightings=(), host=HostId(self._name)))
            case cmd.KillMember(member=member, hang=hang, reason=reason):
                self.kill(member, hang=hang, reason=sentence(reason))
            case cmd.DismissStranger(member=member, reason=reason):
                self.kill(member, hang=False, reason=sentence(reason))
            case cmd.StopJob():
                self.stop(command)
            case _:
                for member in cmd.members_of(command):
                    if member in self.members:
                        self.told(member, command)

    def _start(self, member: MemberId, rank: Rank | None) -> None:
        self.members[member] = rank
        self.client.handle(ev.MemberConnected(at=0.0, member=member))
        if rank is None:
            self.client.handle(ev.MemberParked(at=0.0, member=member))

    def told(self, member: MemberId, command: cmd.ToMember) -> None:
        match command:
            case cmd.AssignRank(generation=generation, rank=rank, founding=founding):
                self.members[member] = rank
                kind = ev.MemberEstablished if founding else ev.MemberPrepared
                self.client.handle(kind(at=0.0, member=member, generation=generation, twin_key="all", holdings=(1,)))
            case cmd.AbandonGeneration(generation=generation):
                self._heard.setdefault(generation, Heard()).abandoned.append(time.monotonic())
                self.client.handle(_position(member, generation))
            case cmd.ResumeAt(generation=generation):
                self._heard.setdefault(generation, Heard()).resumed.append(time.monotonic())
                self.client.handle(ev.MemberResumed(at=0.0, member=member, generation=generation))

    def kill(self, member: MemberId, *, hang: bool, reason: str) -> None:
        self.lose(member, Cause(kind=CauseKind.HANG if hang else CauseKind.DISMISSED, detail=reason, exit_code=-9))

    def lose(self, member: MemberId, cause: Cause) -> None:
        if member in self.members:
            del self.members[member]
            self.client.handle(ev.MemberLost(at=0.0, member=member, cause=cause))

    def stop(self, _stop: cmd.StopJob) -> None:
        self.stopped = True


def policy_for(world: int) -> Policy:
    """One rank per host."""
    return Policy(world_size=world, hosts=world)


def _position(member: MemberId, generation: Generation) -> ev.PositionReported:
    return ev.PositionReported(
        at=0.0, member=member, generation=generation, position=Position(holds=_HOLDS), twin_key="all"
    )


class Crowd:
    """All hosts of this process, and the answers to commands."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.heard: dict[int, Heard] = {}
        self._pace = options.pace
        meeting = Meeting(address=options.address, token=options.token, world=options.world)
        self.hosts = [
            LightHost(f"h{number}", 1, 0, meeting, self.heard)
            for number in range(options.first, options.first + options.count)
        ]
        self.hosts += [
            LightHost(f"s{options.first}-{number}", 0, 4, meeting, self.heard) for number in range(options.spare_hosts)
        ]

    async def connect(self) -> None:
        for host in self.hosts:
            host.client.start()
            await asyncio.sleep(self._pace)

    def look(self) -> dict[str, Any]:
        return {
            "connected": sum(host.client.connected for host in self.hosts),
            "of": len(self.hosts),
            "ranks": sum(rank is not None for host in self.hosts for rank in host.members.values()),
            "stopped": sum(host.stopped for host in self.hosts),
            "newest": max(self.heard, default=0),
        }

    def kill(self) -> dict[str, Any]:
        host, member = next(
            (host, member) for host in self.hosts for member, rank in host.members.items() if rank is not None
        )
        at = time.monotonic()
        host.lose(member, Cause(kind=CauseKind.SIGNAL, detail="killed by signal 9", exit_code=-9))
        return {"at": at, "member": member}

    def report(self, generation: int) -> dict[str, Any]:
        heard = self.heard.get(generation, Heard())
        return {
            "heard": len(heard.abandoned),
            "abandoned": [min(heard.abandoned), max(heard.abandoned)] if heard.abandoned else [],
            "resumed": [min(heard.resumed), max(heard.resumed)] if heard.resumed else [],
            "resumes": len(heard.resumed),
        }

    def answer(self, line: str) -> dict[str, Any]:
        match line.split():
            case ["look"]:
                return self.look()
            case ["kill"]:
                return self.kill()
            case ["report", generation]:
                return self.report(int(generation))
        return {"error": f"no such command: {line!r}"}


async def run(options: argparse.Namespace) -> None:
    crowd = Crowd(options)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    connecting = asyncio.create_task(crowd.connect())
    while line := await commands.readline():
        print(json.dumps(crowd.answer(line.decode())), flush=True)
    connecting.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--spare-hosts", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.002, help="seconds between two hosts' connecting")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(run(options))


if __name__ == "__main__":
    main()
