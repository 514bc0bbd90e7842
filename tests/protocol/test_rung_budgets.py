"""Rungs that are not allowed or used up: the next one is taken, and the reason says why."""

from dataclasses import replace

import msgspec
from msgspec import structs
from tests.protocol.cluster_play import m
from tests.protocol.test_job_stories import lost, training

from understudy.foundation.ids import Generation, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.commands import (
    AbandonGeneration,
    AskCheckpoints,
    Command,
    DecisionKind,
    RecordDecision,
    ResumeAt,
    StopJob,
)
from understudy.protocol.job import JobMachine
from understudy.protocol.positions import Position
from understudy.protocol.reasons import Code, because
from understudy.protocol.recovery_kind import Processes, RecoveryKind
from understudy.protocol.requests import AbortGeneration
from understudy.protocol.roster import Standing
from understudy.protocol.rungs import Rung, RungLimits
from understudy.protocol.sentences import sentence
from understudy.protocol.state import State
from understudy.protocol.takeover import facts_of, take_over


def world_with(limits: RungLimits, twins: bool = True) -> JobMachine:
    """Four ranks before step 8; without twins every one is alone with its shard."""
    machine = training(world_size=4)
    allow(machine, limits)
    for rank in range(4):
        key = "all" if twins else f"shard {rank}"
        machine.round.state.twin_keys[Rank(rank)] = key
        machine.round.state.holdings[key] = frozenset({0 if twins else rank})
    return machine


def allow(machine: JobMachine, limits: RungLimits) -> None:
    policy = replace(machine.policy, rungs=limits, checkpoints=True)
    machine.__init__(policy, machine.state)  # type: ignore[misc]


def recover(
    machine: JobMachine, rank: int, saved: tuple[int, ...] = (), durable: tuple[int, ...] = (), holds: int = 8
) -> list[Command]:
    """Lose a rank, let everybody report and, if there is a plan, resume. Returns what was commanded."""
    commands = list(machine.handle(lost_holder(machine, rank)))
    commands += report(machine, saved, durable, holds)
    for command in [command for command in commands if isinstance(command, ResumeAt)]:
        for member in command.members:
            commands += machine.handle(ev.MemberResumed(at=13.0, member=member, generation=command.generation))
    return commands


def report(
    machine: JobMachine, saved: tuple[int, ...], durable: tuple[int, ...], holds: int | None = 8
) -> list[Command]:
    commands: list[Command] = []
    copies, files = tuple(map(StepNumber, saved)), tuple(map(StepNumber, durable))
    for rank, id_ in sorted(machine.roster.holders.items()):
        member, key = machine.roster.members[id_], machine.round.state.twin_keys[rank]
        if member.standing is Standing.JOINING:
            commands += machine.handle(ev.MemberConnected(at=11.0, member=id_))
            told: ev.Event = ev.MemberPrepared(
                at=12.0, member=id_, generation=member.assigned_in, twin_key=key, saved=copies
            )
        else:
            has = None if member.standing is Standing.PREPARED or holds is None else StepNumber(holds)
            told = ev.PositionReported(
                at=11.0,
                member=id_,
                generation=machine.generation,
                position=Position(holds=has, saved=copies),
                twin_key=key,
            )
        commands += machine.handle(told)
    return commands + tell_checkpoints(machine, commands, files)


def tell_checkpoints(machine: JobMachine, commands: list[Command], files: tuple[StepNumber, ...]) -> list[Command]:
    """Whoever is asked looks at its files, and not before."""
    told: list[Command] = []
    for asked in [command for command in commands if isinstance(command, AskCheckpoints)]:
        for member in asked.members:
            event = ev.CheckpointsTold(at=12.5, member=member, generation=asked.generation, steps=files)
            told += machine.handle(event)
    return told


def lost_holder(machine: JobMachine, rank: int) -> ev.MemberLost:
    return structs.replace(lost(rank), member=machine.roster.holders[Rank(rank)])


def plan_in(commands: list[Command]) -> ResumeAt:
    (plan,) = [command for command in commands if isinstance(command, ResumeAt)]
    return plan


def stop_in(commands: list[Command]) -> StopJob:
    (stop,) = [command for command in commands if isinstance(command, StopJob)]
    return stop


def test_limits() -> None:
    limits = RungLimits(swap=0, peer_memory=3, checkpoint=1)
    assert limits.refusal(Rung.SWAP, 0) == because(Code.NOT_ALLOWED, strategy="swap")
    assert limits.refusal(Rung.PEER_MEMORY, 2) is None
    assert limits.refusal(Rung.PEER_MEMORY, 3) == because(Code.BUDGET_SPENT, limit=3, strategy="peer memory")
    assert limits.refusal(Rung.CHECKPOINT, 1) == because(Code.BUDGET_SPENT, limit=1, strategy="durable checkpoint")
    assert limits.refusal(Rung.DEGRADE, 1000) is None


def test_a_swap_is_counted_once_the_world_has_resumed() -> None:
    machine = world_with(RungLimits(swap=1))
    plan = plan_in(recover(machine, 2))
    assert plan.rung is Rung.SWAP and "swap: rank 2 takes its state" in sentence(plan.reason)
    assert machine.fallback.state.taken == {Rung.SWAP: 1}
    stop = stop_in(recover(machine, 1, saved=(), durable=()))
    assert because(Code.BUDGET_SPENT, limit=1, strategy="swap") in stop.reason.all()
    refused = [part.get("strategy") for part in stop.reason.all() if part.code == Code.NO_STRATEGY]
    assert refused == ["swap", "degrade", "peer memory", "restart from memory", "durable checkpoint"]
    assert stop.reason.has(Code.NOTHING_SAVED)


def test_an_alarm_without_a_loss_is_no_swap() -> None:
    machine = world_with(RungLimits(swap=0))
    commands = list(machine.handle(AbortGeneration(at=10.0, reason="an operator wants it")))
    for member in list(machine.roster.holders.values()):
        position = Position(holds=StepNumber(8))
        commands += machine.handle(
            ev.PositionReported(
                at=11.0, member=member, generation=machine.generation, position=position, twin_key="all"
            )
        )
    assert plan_in(commands).step == 8 and machine.fallback.state.taken == {}


def test_without_swaps_the_world_is_degraded_where_it_can_be() -> None:
    machine = world_with(RungLimits(swap=0))
    machine.round.state.replicas = {Rank(rank): frozenset({Rank(rank)}) for rank in range(4)}
    commands = recover(machine, 2)
    (degraded,) = [c for c in commands if isinstance(c, RecordDecision) and c.kind is DecisionKind.DEGRADE]
    assert because(Code.NOT_ALLOWED, strategy="swap") in degraded.reason.all()
    assert plan_in(commands).absent == (Rank(2),)
    assert machine.fallback.state.taken == {Rung.DEGRADE: 1}


def test_without_swaps_the_state_comes_from_further_down() -> None:
    machine = world_with(RungLimits(swap=0))
    plan = plan_in(recover(machine, 2, saved=(7, 8)))
    assert (plan.rung, plan.step, plan.donors) == (Rung.PEER_MEMORY, 8, ())
    assert because(Code.NOT_ALLOWED, strategy="swap") in plan.reason.all()


def test_peer_memory_is_used_up_and_the_checkpoint_is_next() -> None:
    machine = world_with(RungLimits(peer_memory=1, checkpoint=1), twins=False)
    assert plan_in(recover(machine, 2, saved=(7, 8), durable=(4,))).rung is Rung.PEER_MEMORY
    plan = plan_in(recover(machine, 1, saved=(7, 8), durable=(4,)))
    assert (plan.rung, plan.step) == (Rung.CHECKPOINT, 4)
    assert because(Code.BUDGET_SPENT, limit=1, strategy="peer memory") in plan.reason.all()
    assert plan.reason.has(Code.SAME_STATE)
    stop = stop_in(recover(machine, 0, saved=(7, 8), durable=(4,)))
    assert because(Code.BUDGET_SPENT, limit=1, strategy="durable checkpoint") in stop.reason.all()


def test_no_restart_from_memory_when_nobody_holds_anything_that_could_be_saved() -> None:
    """Whoever held the state was lost after the restart was decided."""
    for saved, durable, expected in (((7, 8), (), (Rung.PEER_MEMORY, 8)), ((), (4,), (Rung.CHECKPOINT, 4))):
        machine = world_with(RungLimits())
        machine.handle(lost_holder(machine, 2))
        machine.round.state.kind = RecoveryKind(processes=Processes.SAVING)
        commands = report(machine, saved, durable, holds=None)
        plan = plan_in(commands)
        assert (plan.rung, plan.step) == expected
        assert any(c.reason.has(Code.NOTHING_TO_SAVE) for c in commands if isinstance(c, RecordDecision))
    machine = world_with(RungLimits())
    machine.handle(lost_holder(machine, 2))
    machine.round.state.kind = RecoveryKind(processes=Processes.SAVING)
    assert stop_in(report(machine, (), (), holds=None)).reason.has(Code.NO_STATE_LEFT)


def test_a_member_that_prepared_in_an_older_generation_is_told_of_the_newer_one_when_it_is_asked_for_files() -> None:
    """The order to leave the older one may have been lost, and then it answers no question of the newer one."""
    machine = world_with(RungLimits(), twins=False)
    machine.handle(lost_holder(machine, 2))
    machine.handle(lost_holder(machine, 1))
    late = machine.roster.holders[Rank(2)]
    said: list[Command] = []
    for rank, id_ in sorted(machine.roster.holders.items()):
        member, key = machine.roster.members[id_], machine.round.state.twin_keys[rank]
        if member.standing is Standing.JOINING:
            said += machine.handle(ev.MemberConnected(at=11.0, member=id_))
            told: ev.Event = ev.MemberPrepared(at=12.0, member=id_, generation=member.assigned_in, twin_key=key)
        else:
            position = Position(holds=StepNumber(8))
            told = ev.PositionReported(
                at=11.0, member=id_, generation=machine.generation, position=position, twin_key=key
            )
        said += machine.handle(told)
    assert any(isinstance(command, AskCheckpoints) and late in command.members for command in said)
    assert machine.roster.members[late].assigned_in < machine.generation
    again = machine.handle(ev.Tick(at=20.0))
    assert any(isinstance(command, AbandonGeneration) and late in command.members for command in again)


def test_counts_outlive_the_coordinator() -> None:
    machine = world_with(RungLimits(peer_memory=1), twins=False)
    recover(machine, 2, saved=(7, 8))
    machine.handle(lost_holder(machine, 1))
    facts = facts_of(machine, 14.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(facts), type=State) == facts
    successor, _ = take_over(machine.policy, facts, at=1.0)
    assert successor.fallback.state == machine.fallback.state
    assert successor.fallback.state.taken == {Rung.PEER_MEMORY: 1} and successor.fallback.state.under_way == {Rung.SWAP}


def test_a_recovery_that_is_interrupted_counts_once() -> None:
    machine = world_with(RungLimits(swap=1))
    machine.handle(lost(2))
    report(machine, (), ())
    machine.handle(ev.RecoveryFailed(at=13.0, member=m(0), generation=Generation(2), why="the network"))
    assert machine.generation == 3 and machine.fallback.state.taken == {}
    plan = plan_in(report(machine, (), ()))
    for member in plan.members:
        machine.handle(ev.MemberResumed(at=14.0, member=member, generation=Generation(3)))
    assert machine.fallback.state.taken == {Rung.SWAP: 1} and not machine.fallback.state.under_way
