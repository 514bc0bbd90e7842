"""Spares that are asked for and sent away again, while ranks are lost."""

from msgspec import structs
from tests.protocol.test_job_stories import holding, lost, m, prepared, reported, resumed, training

from understudy.foundation.ids import Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import AskStep, AssignRank, Command, KillMember, StartMember
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.job import JobMachine
from understudy.protocol.requests import KeepSpares
from understudy.protocol.stages import Stage

DISMISSED = Cause(kind=CauseKind.DISMISSED, detail="there are more spares than wanted", exit_code=-9)


def keep(machine: JobMachine, spares: int, at: float = 30.0) -> tuple[Command, ...]:
    return machine.handle(KeepSpares(at=at, host=THIS_HOST, spares=spares, reason="chaos"))


def test_spares_that_we_send_away_say_nothing_against_their_host() -> None:
    machine = training(spares=0)
    keep(machine, 3)
    ended = [command.member for command in keep(machine, 0) if isinstance(command, KillMember)]
    assert ended == [m(4), m(3), m(2)]
    for member in ended:
        machine.handle(ev.MemberLost(at=31.0, member=member, cause=DISMISSED))
    assert machine.hosts.by_id[THIS_HOST].failures_in_a_row == 0
    assert [command.member for command in keep(machine, 1, at=32.0) if isinstance(command, StartMember)] == [m(5)]


def test_no_rank_goes_to_a_spare_that_was_sent_away() -> None:
    machine = training(spares=2)
    keep(machine, 1)
    (assign,) = [command for command in machine.handle(lost(1)) if isinstance(command, AssignRank)]
    assert assign.member == m(2)
    assert m(3) not in machine.roster.members


def degraded(absent: int) -> JobMachine:
    """Four ranks began without spares, and the last ones are lost by now."""
    machine = training(world_size=4, spares=0)
    machine.round.state.replicas = {Rank(rank): frozenset({Rank(rank)}) for rank in range(4)}
    for number in range(3, 3 - absent, -1):
        machine.handle(lost(number))
    left = range(4 - absent)
    generation = machine.generation
    for number in left:
        machine.handle(reported(number, generation, holding(5)))
    for number in left:
        machine.handle(resumed(number, generation))
    assert machine.stage is Stage.TRAINING and len(machine.round.state.absent) == absent
    return machine


def warm(machine: JobMachine, number: int, at: float) -> tuple[Command, ...]:
    machine.handle(ev.MemberConnected(at=at, member=m(number)))
    return machine.handle(ev.MemberParked(at=at, member=m(number)))


def test_one_spare_at_a_time_is_enough_for_two_absent_ranks() -> None:
    machine = degraded(absent=2)
    assert [command.member for command in keep(machine, 1) if isinstance(command, StartMember)] == [m(4)]
    warm(machine, 4, at=31.0)
    deadline = machine.next_deadline()
    assert deadline is not None and deadline <= 31.0 + machine.policy.refill_delay
    started = [c.member for c in machine.handle(ev.Tick(at=deadline)) if isinstance(c, StartMember)]
    assert started == [m(5)]
    warm(machine, 5, at=33.0)
    generation = machine.generation
    machine.handle(structs.replace(prepared(4, generation), at=34.0))
    asked = machine.handle(structs.replace(prepared(5, generation), at=34.0))
    assert any(isinstance(command, AskStep) for command in asked)
    for number in (0, 1):
        told = ev.StepTold(at=35.0, member=m(number), generation=generation, step=StepNumber(9))
        machine.handle(told)
    assert not machine.round.state.absent and machine.generation == generation + 1
