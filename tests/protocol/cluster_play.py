"""A job on two hosts and a spare host that a test plays through by hand."""

from dataclasses import replace
from typing import TypeVar

from understudy.foundation.ids import Generation, HostId, MemberId, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import Command
from understudy.protocol.job import JobMachine
from understudy.protocol.policy import Policy
from understudy.protocol.positions import Position
from understudy.protocol.stages import Stage

A, B, SPARE = HostId("a"), HostId("b"), HostId("spare")
KILLED = Cause(kind=CauseKind.SIGNAL, detail="killed by signal 9", exit_code=-9, step=StepNumber(5))


def m(number: int) -> MemberId:
    return MemberId(f"m-{number}")


Kind = TypeVar("Kind", bound=Command)


def of(kind: type[Kind], commands: tuple[Command, ...]) -> list[Kind]:
    return [command for command in commands if isinstance(command, kind)]


def cluster(twins: tuple[str, ...] = ("all",) * 4, **limits: float) -> JobMachine:
    """Hosts a and b with two ranks each (m-0 to m-3), a spare host with two warm spares (m-4, m-5). `twins`: ranks with
    the same word hold the same."""
    policy = replace(Policy(world_size=4, hosts=2), **limits)  # type: ignore[arg-type]
    machine = JobMachine(policy)
    machine.handle(ev.HostJoined(at=0.0, host=SPARE, ranks=0, spares=2))
    machine.handle(ev.HostJoined(at=0.1, host=A, ranks=2, spares=0))
    machine.handle(ev.HostJoined(at=0.2, host=B, ranks=2, spares=0))
    for number in range(6):
        machine.handle(ev.MemberConnected(at=1.0, member=m(number)))
    for number in (4, 5):
        machine.handle(ev.MemberParked(at=1.5, member=m(number)))
    for number, key in enumerate(twins):
        held = (1 + twins.index(key),)
        machine.handle(
            ev.MemberEstablished(at=2.0, member=m(number), generation=Generation(1), twin_key=key, holdings=held)
        )
    assert machine.stage is Stage.TRAINING
    return machine


def report(machine: JobMachine, generation: int, *numbers: int) -> tuple[Command, ...]:
    commands: tuple[Command, ...] = ()
    for number in numbers:
        commands += machine.handle(
            ev.PositionReported(
                at=10.0,
                member=m(number),
                generation=Generation(generation),
                position=Position(holds=StepNumber(5)),
                twin_key="all",
            )
        )
    return commands


def silence(machine: JobMachine, *hosts: HostId, at: float = 10.0) -> tuple[Command, ...]:
    """These hosts fall silent and are given up."""
    for host in hosts:
        machine.handle(ev.HostSilent(at=at, host=host, why="the connection ended"))
    others = [host.id for host in machine.hosts.present() if host.id not in machine.hosts.silent]
    for host in others:
        speak(machine, host, at=at + 0.3)
    most = 2 * len(machine.hosts.silent) > len(machine.hosts.present())  # then the coordinator suspects itself first
    return machine.handle(ev.Tick(at=at + (machine.policy.takeover_patience if most else 0.0) + 1.0))


def speak(machine: JobMachine, host: HostId, at: float) -> tuple[Command, ...]:
    """Its agent says something: the coordinator is not cut off from it."""
    return machine.handle(ev.ActivityObserved(at=at, sightings=(), host=host))


def hear_all(machine: JobMachine, at: float = 8.0) -> tuple[Command, ...]:
    """Every host finds the coordinator, with everybody who lived there from the beginning."""
    commands: tuple[Command, ...] = ()
    for host, members in ((A, (0, 1)), (B, (2, 3)), (SPARE, (4, 5))):
        commands += machine.handle(ev.HostHeard(at=at, host=host, members=tuple(map(m, members))))
    return commands
