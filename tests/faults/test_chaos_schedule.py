"""The schedule of a chaos run is a function of its seed, and asks of no world what would rightly end it."""

import itertools
from typing import Any

import pytest

from understudy.ledger.records import DecisionRecord
from understudy.protocol.reasons import Code
from understudy_testkit.faults.catalogue import IN_RECOVERY, Kind, Place
from understudy_testkit.faults.chaos import RANKS, ROOM, Act, Happening, Mode, Schedule, draw, steps_for
from understudy_testkit.faults.chaos_decisions import determined

ACTS = 8
MANY = [draw(str(seed), mode, ACTS) for seed in range(60) for mode in Mode]


def test_a_seed_repeats_its_schedule_and_another_one_does_not() -> None:
    assert draw("7", Mode.DDP, ACTS) == draw("7", Mode.DDP, ACTS)
    assert len({draw(str(seed), Mode.DDP, ACTS) for seed in range(20)}) == 20


def test_everything_happens_in_every_mode() -> None:
    for mode in Mode:
        mine = [schedule for schedule in MANY if schedule.mode is mode]
        wanted = set(Happening) - ({Happening.FLIP} if mode is Mode.FSDP else set())
        assert {act.happening for schedule in mine for act in schedule.acts} == wanted
        assert {schedule.may_degrade for schedule in mine} == ({False} if mode is Mode.FSDP else {True, False})
        assert {number for schedule in mine for act in schedule.acts for number in act.spares} == {0, 1, 2, 3}


@pytest.mark.parametrize("schedule", MANY, ids=lambda schedule: f"{schedule.mode}-{schedule.seed}")
def test_acts_are_apart_and_strike_only_who_is_there(schedule: Schedule) -> None:
    assert schedule.steps == steps_for(ACTS)
    names = [fault.name for fault in schedule.faults]
    assert len(names) == len(set(names))
    for act in schedule.acts:
        assert {fault.rank for fault in act.faults} <= set(act.before)
        assert all((fault.step is None) == (fault.place in IN_RECOVERY) for fault in act.faults)
        assert all(fault.after in names for fault in act.faults if fault.step is None)
    for one, two in itertools.pairwise(schedule.acts):
        assert one.step + 5 < two.step - ROOM  # a flip is found by then
        assert one.after == two.before or two.spares
    assert schedule.acts[0].step - ROOM > 2 and schedule.acts[-1].step < schedule.steps - 8


@pytest.mark.parametrize("schedule", MANY, ids=lambda schedule: f"{schedule.mode}-{schedule.seed}")
def test_nobody_loses_the_last_holder_of_anything(schedule: Schedule) -> None:
    for act in schedule.acts:
        assert act.after
        if schedule.mode is Mode.HSDP:
            assert {rank % 2 for rank in act.after} == {0, 1}
            lost = {fault.rank for fault in act.faults if fault.kind is not Kind.FLIP and not fault.joiner}
            assert len({rank % 2 for rank in lost}) == len(lost)
        if schedule.mode is Mode.FSDP:
            assert len(act.after) == RANKS
    assert sum(act.happening is Happening.POISON for act in schedule.acts) <= 1


def test_a_thread_strikes_only_with_what_hurts_the_whole_process() -> None:
    in_collective = {fault.kind for schedule in MANY for fault in schedule.faults if fault.place is Place.COLLECTIVE}
    assert in_collective == {Kind.KILL, Kind.STOP, Kind.HOLD_GIL}


# -- what a schedule determines ----------------------------------------------------------------------------------------


def decision(generation: int, kind: str, reason: str = "", **more: Any) -> DecisionRecord:
    return DecisionRecord(at=float(generation), generation=generation, kind=kind, reason=reason, **more)


def one_act(**more: object) -> Schedule:
    everybody = tuple(range(RANKS))
    act = dict[str, object](
        number=0, happening=Happening.PAIR, step=20, faults=(), spares=(), offered=1, before=everybody, after=everybody
    )
    acts = (Act(**{"step_is_known": True, **act, **more}),)  # type: ignore[arg-type]
    return Schedule(seed="x", mode=Mode.DDP, steps=40, spares=1, acts=acts)


def test_races_do_not_count() -> None:
    first = [
        decision(2, "swap", rank=1),
        decision(3, "swap", rank=2),
        decision(3, "verdict", "retry: nobody passed it", step=20),
        decision(3, "resumed", step=20),
        decision(4, "finish", "done"),
    ]
    second = [
        decision(2, "swap", rank=2),
        decision(2, "verdict", "commit: all had arrived", step=21),
        decision(3, "alarm", "could not resume"),
        decision(4, "swap", rank=1),
        decision(4, "resumed", step=20),
        decision(4, "finish", "done"),
    ]
    same = determined(one_act(), [(0, 0), (4, 4)], first)
    assert same == determined(one_act(), [(0, 0), (5, 5)], second)
    assert same == ("act 0, two at once: rank 1 lost; rank 2 lost; resumes at step 20; swap", "finish: done")


@pytest.mark.parametrize(
    "other",
    [
        decision(2, "swap", rank=3),
        decision(2, "kill", rank=1),
        decision(2, "degrade", "degrade: no swap"),
        decision(2, "restart", "restart from memory"),
        decision(2, "rewind", code=Code.PEER_MEMORY, step=18),
        decision(2, "corrupt", code=Code.OUTLIERS, fields={"ranks": [1]}),
        decision(2, "resumed", step=19),
        decision(9, "stop", "another end"),
    ],
    ids=lambda other: other.kind,
)
def test_everything_else_does(other: DecisionRecord) -> None:
    told = [decision(2, "swap", rank=1), decision(2, "resumed", step=20)]
    more = [*told, other]
    assert determined(one_act(), [(0, 0), (2, 2)], told) != determined(one_act(), [(0, 0), (3, 3)], more)


def test_ranks_that_come_back_before_an_act_are_told() -> None:
    told = [decision(2, "move", "rank 1 comes back", step=15), decision(2, "resumed", step=15)]
    assert determined(one_act(spares=(2,)), [(0, 2), (2, 2)], told) == (
        "act 0, two at once: spares 2; whole again; nothing",
    )
