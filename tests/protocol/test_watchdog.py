"""Nobody is ended without evidence: slow is not dead, and the last holder of a state is never ended."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from msgspec import structs
from tests.protocol.cluster_play import of
from tests.protocol.test_job_stories import finished, holding, lost, prepared, reported, resumed, training

from understudy.foundation.ids import Generation, MemberId, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import (
    Command,
    DecisionKind,
    KillMember,
    RecordDecision,
    ReleaseMembers,
    ResumeAt,
    StopJob,
    WatchClosely,
)
from understudy.protocol.job import JobMachine
from understudy.protocol.liveness import Condition, Sighting
from understudy.protocol.policy import Policy
from understudy.protocol.reasons import Code, because
from understudy.protocol.requests import KeepSpares
from understudy.protocol.sentences import sentence
from understudy.protocol.stages import Stage

STOPPED, DEAF, TRACED = Condition.STOPPED, Condition.DEAF, Condition.TRACED
BUSY, WAITING, MOVING = Condition.BUSY, Condition.WAITING, Condition.MOVING


def m(number: int) -> MemberId:
    return MemberId(f"m-{number}")


def world(twins: bool = True, ranks: int = 4, **limits: float) -> JobMachine:
    """Four ranks in training and one warm spare (m-4)."""
    machine = training(world_size=ranks)
    machine = JobMachine(replace(machine.policy, **limits), machine.state)  # type: ignore[arg-type]
    for rank in range(ranks):
        key = "all" if twins else f"shard {rank}"
        machine.round.state.twin_keys[Rank(rank)] = key
        machine.round.state.holdings[key] = frozenset({0 if twins else rank})
    machine.handle(ev.MemberParked(at=3.0, member=m(ranks)))
    return machine


def see(
    machine: JobMachine,
    at: float,
    what: Mapping[int, Condition],
    seconds: float,
    *,
    unchanged: float = 0.0,
    outside: bool = False,
) -> tuple[Command, ...]:
    """All ranks that are not named wait, for as long."""
    sightings = tuple(
        Sighting(
            member=machine.roster.holders[Rank(rank)],
            condition=(condition := what.get(rank, WAITING)),
            seconds=seconds,
            unchanged=unchanged if condition is BUSY else 0.0,
            outside=outside and condition is BUSY,
            where="in load at train.py:7",
            heard=machine.generation,
        )
        for rank in range(machine.policy.world_size)
        if Rank(rank) in machine.roster.holders
    )
    return machine.handle(ev.ActivityObserved(at=at, sightings=sightings))


def killed(commands: tuple[Command, ...]) -> list[MemberId]:
    return [command.member for command in of(KillMember, commands)]


def remarks(commands: tuple[Command, ...]) -> list[str]:
    return [sentence(c.reason) for c in of(RecordDecision, commands) if c.kind is DecisionKind.WAIT]


# -- stopped and deaf -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", [STOPPED, DEAF], ids=lambda condition: condition.value)
def test_a_rank_that_is_stopped_or_deaf_while_others_wait_is_replaced_after_two_seconds(condition: Condition) -> None:
    machine = world()
    assert killed(see(machine, 30.0, {1: condition}, 1.9)) == []
    commands = see(machine, 30.2, {1: condition}, 2.1)
    assert killed(commands) == [m(1)] and machine.generation == 1
    assert killed(see(machine, 30.4, {1: condition}, 2.3)) == [], "once is enough"


def test_a_rank_that_was_replaced_before_holds_the_state_of_its_twin() -> None:
    """Where it stood in that recovery, with nothing, is long past."""
    machine = world(ranks=2)
    machine.handle(lost(1))
    machine.handle(prepared(2, 2))
    machine.handle(reported(0, 2, holding(5)))
    for number in (0, 2):
        machine.handle(resumed(number, 2))
    assert machine.stage is Stage.TRAINING
    assert killed(see(machine, 30.2, {0: STOPPED}, 2.1)) == [m(0)]


def test_a_rank_on_a_host_that_is_full_is_replaced_in_its_own_place() -> None:
    """Somebody has asked for no spares: whoever is ended makes room for its replacement."""

    def full() -> JobMachine:
        machine = world()
        machine.handle(KeepSpares(at=20.0, host=machine.round.state.store, spares=0, reason="asked for"))
        machine.handle(ev.MemberLost(at=21.0, member=m(4), cause=Cause(kind=CauseKind.DISMISSED, detail="surplus")))
        assert machine.pool.warm_spares(30.0) == 0
        return machine

    assert killed(see(full(), 130.0, {1: STOPPED}, 100.0)) == [m(1)]
    machine = full()
    see(machine, 130.0, {1: BUSY}, 100.0)
    assert machine.generation == 2, "it is replaced unless it comes back now"
    for rank in (0, 2, 3):
        machine.handle(reported(rank, 2, holding(5), at=130.5))
    assert killed(see(machine, 135.0, {1: BUSY}, 105.0)) == [m(1)]


def test_ranks_that_went_back_to_an_agreed_state_hold_it() -> None:
    """They were further when they were stopped."""
    machine = world()
    machine.round.state.positions = {Rank(rank): holding(9) for rank in range(4)}
    machine.round.state.plan = ResumeAt(
        generation=Generation(1),
        step=StepNumber(5),
        members=(),
        donors=(),
        store=machine.round.state.store,
        reason=because(Code.ALL_AT_FENCE, step=5),
        rewind=True,
    )
    assert killed(see(machine, 30.2, {1: STOPPED}, 2.1)) == [m(1)]


def test_a_stopped_rank_for_which_nobody_waits_is_left_alone() -> None:
    machine = world()
    everybody_else_computes = {0: MOVING, 1: STOPPED, 2: BUSY, 3: MOVING}
    assert killed(see(machine, 30.0, everybody_else_computes, 60.0)) == []


def test_a_stopped_rank_whose_only_twin_is_held_by_a_debugger_is_waited_for() -> None:
    """To end it would help nobody: the world waits for the debugger anyway."""
    machine = world(ranks=2)
    assert killed(see(machine, 30.0, {0: STOPPED, 1: TRACED}, 20.0)) == []


def test_a_rank_that_is_held_by_a_debugger_is_waited_for_without_an_end() -> None:
    machine = world()
    said: list[str] = []
    for minute in range(60):
        commands = see(machine, 30.0 + 60 * minute, {1: TRACED}, 10.0 + 60 * minute)
        assert killed(commands) == []
        said += remarks(commands)
    assert "held by a debugger" in said[0] and len(said) < 12, "it is said at growing intervals"


def test_ranks_that_are_all_stopped_at_once_are_not_touched() -> None:
    machine = world()
    assert killed(see(machine, 30.0, dict.fromkeys(range(4), STOPPED), 60.0)) == []


def test_of_two_stopped_twins_neither_is_ended_if_nobody_else_holds_their_state() -> None:
    machine = world()
    for rank, key in enumerate(("a", "b", "a", "b")):
        machine.round.state.twin_keys[Rank(rank)] = key
        machine.round.state.holdings[key] = frozenset({ord(key)})
    commands = see(machine, 30.0, {0: STOPPED, 2: STOPPED}, 20.0)
    assert killed(commands) == []
    assert any("no other rank holds the state of rank 0" in remark for remark in remarks(commands))
    assert killed(see(machine, 31.0, {0: STOPPED, 1: STOPPED}, 20.0)) == [m(0)], "one spare: one is enough for now"


@pytest.mark.parametrize("condition", [STOPPED, DEAF, BUSY], ids=lambda condition: condition.value)
def test_the_last_holder_of_a_state_is_never_ended(condition: Condition) -> None:
    machine = world(twins=False)
    said: list[str] = []
    for second in range(0, 4000, 10):
        commands = see(machine, 30.0 + second, {1: condition}, float(second + 10), unchanged=float(second + 10))
        assert killed(commands) == [] and machine.generation == 1
        said += remarks(commands)
    assert "no other rank holds the state of rank 1" in said[-1] and len(said) < 15


def test_with_peer_memory_somebody_else_holds_it() -> None:
    machine = world(twins=False, peer_memory=1)
    assert killed(see(machine, 30.0, {1: STOPPED}, 3.0)) == [m(1)]


def test_a_stopped_rank_without_a_spare_is_waited_for_if_the_world_cannot_do_without_it() -> None:
    machine = training(world_size=2, spares=0)
    commands = machine.handle(
        ev.ActivityObserved(
            at=30.0,
            sightings=(
                Sighting(member=m(0), condition=WAITING, seconds=20.0),
                Sighting(member=m(1), condition=STOPPED, seconds=20.0),
            ),
        )
    )
    assert killed(commands) == []
    (remark,) = remarks(commands)
    assert "there is no spare for it" in remark and "the world cannot do without it" in remark


# -- busy -------------------------------------------------------------------------------------------------------------


def test_one_busy_rank_is_waited_for_then_an_alarm_frees_everybody_and_then_it_is_replaced() -> None:
    machine = world()
    (remark,) = remarks(see(machine, 30.0, {1: BUSY}, 12.0))
    assert remark.startswith("ranks 0, 2, 3 wait for rank 1: rank 1 (m-1): busy for 12 s (in load at train.py:7)")
    assert "it answers, and is waited for (--busy-timeout 60 s)" in remark
    assert machine.generation == 1
    see(machine, 77.9, {1: BUSY}, 59.9)
    assert machine.generation == 1
    commands = see(machine, 78.1, {1: BUSY}, 60.1)
    assert machine.generation == 2 and killed(commands) == [], "whatever blocks it in a collective is broken first"
    for rank in (0, 2, 3):
        machine.handle(reported(rank, 2, holding(5), at=78.2))
    assert killed(see(machine, 79.0, {1: BUSY}, 61.0)) == []
    assert killed(see(machine, 80.2, {1: BUSY}, 62.2)) == [m(1)]


def test_a_busy_rank_that_comes_back_after_the_alarm_lives_on() -> None:
    machine = world()
    see(machine, 78.0, {1: BUSY}, 60.1)
    plans: list[ResumeAt] = []
    for rank in range(4):
        plans += of(ResumeAt, machine.handle(reported(rank, 2, holding(5), at=78.5)))
    assert len(plans) == 1 and plans[0].donors == ()


def test_a_busy_rank_whose_stack_and_cpu_time_do_not_change_has_half_of_the_time() -> None:
    machine = world()
    see(machine, 30.0, {1: BUSY}, 29.0, unchanged=29.0)
    assert machine.generation == 1
    see(machine, 31.5, {1: BUSY}, 30.5, unchanged=30.5)
    assert machine.generation == 2


def test_a_busy_rank_is_not_given_up_without_a_warm_spare() -> None:
    machine = world()
    machine.handle(
        ev.MemberLost(at=20.0, member=m(4), cause=Cause(kind=CauseKind.SIGNAL, detail="killed", exit_code=-9))
    )
    commands = see(machine, 300.0, {1: BUSY}, 250.0)
    assert machine.generation == 1
    assert "no warm spare is there for it" in remarks(commands)[0]


def test_steps_that_take_long_make_the_timeout_longer() -> None:
    machine = world()
    machine.handle(ev.PaceLearnt(at=20.0, pace=40.0))
    see(machine, 300.0, {1: BUSY}, 350.0)
    assert machine.generation == 1
    see(machine, 401.0, {1: BUSY}, 401.0)
    assert machine.generation == 2


def test_all_ranks_busy_for_ten_minutes_cost_nothing() -> None:
    machine = world()
    said: list[str] = []
    for second in range(0, 600, 5):
        at = 30.0 + second
        commands = see(machine, at, dict.fromkeys(range(4), BUSY), 5.0 + second, unchanged=5.0 + second)
        assert killed(commands) == [] and machine.generation == 1
        said += remarks(commands)
    assert said[0] == (
        "no rank makes progress, and none is ended for that: ranks 0, 1, 2, 3: busy for 10 s (in load at train.py:7)"
    )
    assert 3 <= len(said) <= 8, "it is said once, and again at growing intervals"


def test_a_busy_rank_is_not_accused_while_somebody_else_still_moves() -> None:
    machine = world()
    see(machine, 300.0, {1: BUSY, 2: MOVING}, 250.0)
    assert machine.generation == 1


def test_between_steps_a_rank_has_the_longer_timeout() -> None:
    machine = world()
    see(machine, 700.0, {1: BUSY}, 650.0, outside=True)
    assert machine.generation == 1
    see(machine, 1900.0, {1: BUSY}, 1801.0, outside=True)
    assert machine.generation == 2


# -- all wait ---------------------------------------------------------------------------------------------------------


def test_ranks_that_all_wait_for_each_other_are_freed_and_nobody_is_ended() -> None:
    machine = world()
    see(machine, 30.0, {}, 9.9)
    assert machine.generation == 1
    commands = see(machine, 30.2, {}, 10.1)
    assert machine.generation == 2 and killed(commands) == []
    (alarm,) = [c for c in of(RecordDecision, commands) if c.kind is DecisionKind.ALARM]
    assert "all ranks have waited for each other for 10.1 s" in sentence(alarm.reason)


def resume(machine: JobMachine, at: float) -> None:
    for rank in range(4):
        machine.handle(reported(rank, machine.generation, holding(5), at=at))
    for rank in range(4):
        machine.handle(ev.MemberResumed(at=at + 0.1, member=m(rank), generation=machine.generation))
    assert machine.stage is Stage.TRAINING


def test_after_a_false_alarm_the_next_one_takes_longer() -> None:
    machine = world()
    see(machine, 30.0, {}, 10.1)
    resume(machine, 31.0)
    see(machine, 45.0, {}, 13.0)
    assert machine.generation == 2
    see(machine, 53.0, {}, 21.0)
    assert machine.generation == 3


def test_no_progress_after_three_recoveries_without_a_new_fault_stops_the_job_and_says_what_everybody_did() -> None:
    machine = world()
    stops: list[StopJob] = []
    for turn in range(4):
        at = 100.0 + 300 * turn
        stops += of(StopJob, see(machine, at, {}, 200.0))
        if turn < 3:
            resume(machine, at + 1.0)
    (stop,) = stops
    assert "has resumed at step 5 3 times without a new fault" in sentence(stop.reason)
    assert "rank 3: waiting for 200 s (in load at train.py:7)" in sentence(stop.reason)


def test_recoveries_from_real_faults_at_the_same_step_are_no_standing_still() -> None:
    machine = world()
    for turn in range(6):
        at = 100.0 + 300 * turn
        assert of(StopJob, see(machine, at, {}, 200.0)) == []
        resume(machine, at + 1.0)
        if turn % 2:
            machine.watchdog.state.fault_seen()


# -- evidence ---------------------------------------------------------------------------------------------------------


def test_old_evidence_is_not_acted_upon_but_asked_for_anew() -> None:
    machine = world()
    see(machine, 30.0, {1: BUSY}, 30.0)
    commands: list[Command] = []
    for at in range(31, 100):
        commands += machine.handle(ev.Tick(at=float(at)))
    assert of(WatchClosely, tuple(commands)) and killed(tuple(commands)) == [] and machine.generation == 1


def test_a_report_that_is_awaited_is_waited_for_as_long_as_its_control_thread_answers() -> None:
    machine = world()
    machine.handle(lost(1))
    machine.handle(prepared(4, 2))
    for rank in (0, 2):
        machine.handle(reported(rank, 2, holding(5)))
    for second in range(1, 58):
        assert killed(see(machine, 11.0 + second, {0: WAITING, 3: BUSY}, float(second))) == []


def test_between_steps_the_control_thread_reports_and_the_verdict_waits_for_the_main_thread() -> None:
    machine = world()
    machine.handle(lost(1))
    machine.handle(prepared(4, 2))
    for rank in (0, 2):
        machine.handle(reported(rank, 2, holding(5)))
    machine.handle(structs.replace(reported(3, 2, holding(5)), provisional=True))
    for second in range(1, 1700, 10):
        commands = see(machine, 11.0 + second, {3: BUSY}, float(second), outside=True)
        assert killed(commands) == [] and of(ResumeAt, commands) == []
    assert of(ResumeAt, machine.handle(reported(3, 2, holding(5), at=2000.0)))


def test_a_rank_that_stays_in_a_collective_that_was_broken_is_ended_after_the_deadline() -> None:
    """gloo does not always wake a sender."""
    machine = world()
    machine.handle(lost(1))
    for rank in (0, 2):
        machine.handle(reported(rank, 2, holding(5)))
    assert killed(see(machine, 15.0, {0: MOVING, 2: MOVING}, 5.0)) == []
    assert killed(see(machine, 21.0, {0: MOVING, 2: MOVING}, 11.0)) == [], "it has known of it for 6 s"
    assert killed(see(machine, 25.1, {0: MOVING, 2: MOVING}, 15.1)) == [m(3)]


def test_a_rank_that_has_not_heard_of_the_recovery_is_not_stuck_but_told_again() -> None:
    machine = world()
    machine.handle(lost(1))
    for rank in (0, 2):
        machine.handle(reported(rank, 2, holding(5)))
    for second in range(60):
        waiting = Sighting(member=m(3), condition=WAITING, seconds=10.0 + second, heard=Generation(1))
        assert killed(machine.handle(ev.ActivityObserved(at=15.0 + second, sightings=(waiting,)))) == []


def test_a_rank_that_waits_for_the_coordinators_word_is_asked_again_before_it_is_ended() -> None:
    """What it reported was lost, or it has waited for another one; it is stuck in no collective."""
    machine = world()
    machine.handle(lost(1))
    for rank in (0, 2):
        machine.handle(reported(rank, 2, holding(5)))
    machine.handle(prepared(4, 2))
    for second in range(300):
        waiting = Sighting(
            member=m(3), condition=WAITING, seconds=1.0 + second, outside=True, recovering=True, heard=Generation(2)
        )
        assert killed(machine.handle(ev.ActivityObserved(at=12.0 + second, sightings=(waiting,)))) == []
    assert of(ResumeAt, machine.handle(reported(3, 2, holding(5), at=320.0)))


def test_forming_goes_on_for_as_long_as_somebody_receives() -> None:
    machine = world()
    machine.handle(lost(1))
    machine.handle(prepared(4, 2))
    for rank in (0, 2, 3):
        machine.handle(reported(rank, 2, holding(5)))
    assert machine.stage is Stage.FORMING
    for at in range(12, 1000):
        see(machine, float(at), {1: MOVING}, 1.0)
        machine.handle(ev.Tick(at=float(at)))
    assert (machine.stage, machine.generation) == (Stage.FORMING, 2)
    for at in range(1000, 1300):
        see(machine, float(at), {}, 200.0)
        machine.handle(ev.Tick(at=float(at)))
    assert machine.generation == 3, "none of them has made progress for 120 s"


def test_a_rank_that_is_stopped_while_state_is_transferred_is_found_too() -> None:
    machine = world()
    machine.handle(lost(1))
    machine.handle(prepared(4, 2))
    for rank in (0, 2, 3):
        machine.handle(reported(rank, 2, holding(5)))
    assert killed(see(machine, 15.0, {2: STOPPED}, 2.5)) == [m(2)]


def test_a_lost_connection_without_a_lost_process_forms_the_groups_again() -> None:
    machine = world()
    machine.handle(ev.ContactLost(at=30.0, member=m(2), generation=Generation(1), why="reset by peer"))
    assert machine.next_deadline() == 32.0 and machine.generation == 1
    machine.handle(ev.Tick(at=32.0))
    assert machine.generation == 2
    machine = world()
    machine.handle(ev.ContactLost(at=30.0, member=m(2), generation=Generation(1), why="reset by peer"))
    machine.handle(lost(1, at=30.2))
    assert machine.generation == 2, "the loss explains it"
    machine.handle(ev.Tick(at=32.0))
    assert machine.generation == 2


# -- spares, founding, joiners ----------------------------------------------------------------------------------------


def test_a_spare_that_stays_stopped_is_replaced_and_the_job_still_ends() -> None:
    machine = world()
    stopped = Sighting(member=m(4), condition=STOPPED, seconds=11.0, outside=True)
    commands = machine.handle(ev.ActivityObserved(at=30.0, sightings=(stopped,)))
    assert killed(commands) == [m(4)]
    machine.handle(
        ev.MemberLost(at=30.1, member=m(4), cause=Cause(kind=CauseKind.HANG, detail="stopped", exit_code=-9))
    )
    said: list[Command] = []
    for rank in range(4):
        said += machine.handle(finished(rank, 1))
    assert of(ReleaseMembers, tuple(said)), "nobody waits for the end of a spare that is gone"


def founding() -> JobMachine:
    machine = JobMachine(Policy(world_size=2, spares=1))
    machine.handle(ev.JobStarted(at=0.0))
    for number in range(3):
        machine.handle(ev.MemberConnected(at=1.0, member=m(number)))
    return machine


def test_a_long_setup_is_waited_for_and_said_and_has_a_limit() -> None:
    machine = founding()
    said: list[str] = []
    at = 0.0
    while at < 1799:
        at = max(at + 1.0, min(machine.next_deadline() or at, 1799.0))
        setup = tuple(
            Sighting(member=m(n), condition=BUSY, seconds=at, outside=True, where="in build") for n in range(2)
        )
        commands = machine.handle(ev.ActivityObserved(at=at, sightings=setup)) + machine.handle(ev.Tick(at=at))
        assert killed(commands) == []
        said += remarks(commands)
    assert said[0].startswith("no first step after 60 s (limit 1800 s, --setup-timeout): ranks 0, 1: busy outside")
    assert len(said) < 10
    assert killed(machine.handle(ev.Tick(at=1811.0))) == [m(0), m(1)]


def test_the_setup_of_a_member_that_a_debugger_holds_has_all_of_its_time_when_it_is_let_go() -> None:
    """Seed 12805 of the simulations of slow members."""
    machine = founding()

    def ended(at: float, condition: Condition) -> list[MemberId]:
        held = Sighting(member=m(0), condition=condition, seconds=10.0, outside=True)
        waiting = Sighting(member=m(1), condition=WAITING, seconds=at, outside=True)
        commands = machine.handle(ev.ActivityObserved(at=at, sightings=(held, waiting)))
        return killed(commands + machine.handle(ev.Tick(at=at)))

    for at in (1700.0, 1810.0, 5000.0):
        assert ended(at, TRACED) == []
    assert ended(5010.0, BUSY) == [] and ended(6790.0, BUSY) == []
    assert ended(6811.0, BUSY) == [m(0)]


def test_a_setup_may_hold_the_interpreter_lock_for_a_minute() -> None:
    machine = founding()
    deaf = Sighting(member=m(1), condition=DEAF, seconds=59.0, outside=True)
    assert killed(machine.handle(ev.ActivityObserved(at=61.0, sightings=(deaf,)))) == []
    deaf = replace(deaf, seconds=61.0)
    assert killed(machine.handle(ev.ActivityObserved(at=63.0, sightings=(deaf,)))) == [m(1)]


def test_a_joiner_may_take_three_times_as_long_as_the_world_took_to_set_up() -> None:
    machine = founding()
    for number in range(2):
        machine.handle(
            ev.MemberEstablished(at=601.0, member=m(number), generation=Generation(1), twin_key="all", holdings=(1,))
        )
    machine.handle(lost(1, at=700.0))
    machine.handle(reported(0, 2, holding(5), at=700.1))
    assert killed(machine.handle(ev.Tick(at=2400.0))) == []
    assert killed(machine.handle(ev.Tick(at=2510.0))) == [m(2)]


def test_failures_are_forgotten_when_the_world_has_gone_beyond_them() -> None:
    machine = world()
    transient = Cause(kind=CauseKind.SCRIPT_ERROR, detail="no such file", exit_code=1, fingerprint="nfs")
    assert machine.state.crash_loop.why_give_up(Rank(1), transient, 5) is None
    machine.state.crash_loop.resumed(StepNumber(9))
    assert machine.state.crash_loop.why_give_up(Rank(1), transient, 5) is None, (
        "a week later the same file system has a bad day again"
    )
    assert machine.state.crash_loop.why_give_up(Rank(1), transient, 5) is not None, "twice in a row it is no accident"
    in_step = replace(transient, step=StepNumber(9))
    machine.state.crash_loop.resumed(StepNumber(9))
    assert machine.state.crash_loop.why_give_up(Rank(1), in_step, 5) is None
    machine.state.crash_loop.resumed(StepNumber(9))
    assert machine.state.crash_loop.why_give_up(Rank(1), in_step, 5) is not None, (
        "the same step, with the same failure again"
    )
