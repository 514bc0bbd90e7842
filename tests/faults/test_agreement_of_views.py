"""When status, metrics and ledger agree, and that each way of not agreeing is found."""

from dataclasses import replace
from typing import Any

from understudy.ledger.records import RecoveryRecord, Sharing, StepRecord
from understudy_testkit.faults import agreement
from understudy_testkit.faults.agreement import Ledger, Metered, Moment, Told

STANDINGS = {"joining": 0, "prepared": 0, "active": 2, "vacant": 0, "absent": 0}
TOLD = Told(
    api="http://one",
    leads=True,
    generation=2,
    stage="training",
    step=10,
    recoveries=1,
    events=5,
    holders={0: "m-0", 1: "m-2"},
    training=frozenset({0, 1}),
    standings=STANDINGS,
)
METERED = Metered(leads=True, generation=2, stage="training", step=10, recoveries=1, standings=STANDINGS)
STILL = Moment(began=100.0, written=1, before=TOLD, metered=METERED, after=TOLD, ended=100.5)


def found(moment: Moment, recalled: int = 0) -> list[str]:
    return list(agreement.disagreements(moment, recalled))


def test_a_moment_at_which_nothing_moves_is_compared_exactly() -> None:
    assert STILL.still and found(STILL) == []
    for wrong in (
        replace(METERED, step=11),
        replace(METERED, generation=3),
        replace(METERED, stage="forming"),
        replace(METERED, absent=1, degraded=True),
        replace(METERED, recoveries=0),
        replace(METERED, standings={**STANDINGS, "active": 1, "vacant": 1}),
        replace(METERED, step=None),
        replace(METERED, leads=False),
        None,
    ):
        assert found(replace(STILL, metered=wrong)), wrong


def test_what_moves_must_lie_between() -> None:
    after = replace(TOLD, step=14, generation=3, stage="stopping", events=7)
    moving = replace(STILL, after=after)
    assert not moving.still
    for middle in (METERED, replace(METERED, step=12), replace(METERED, generation=3, stage="stopping", step=14)):
        assert found(replace(moving, metered=middle)) == []
    for wrong in (replace(METERED, step=9), replace(METERED, step=15), replace(METERED, generation=3, stage="forming")):
        assert found(replace(moving, metered=wrong)), wrong


def test_status_is_never_behind_a_ledger_that_was_read_before_it() -> None:
    assert found(replace(STILL, written=2))


def test_a_process_that_took_over_counts_only_its_own_recoveries_in_its_metrics() -> None:
    taken_over = replace(STILL, before=replace(TOLD, recoveries=4), after=replace(TOLD, recoveries=4))
    assert found(taken_over, recalled=3) == [] and found(taken_over, recalled=2)


def test_nothing_is_said_of_a_moment_at_which_nobody_leads() -> None:
    nobody = Told(api="", leads=False, holders={}, standings={})
    assert found(replace(STILL, before=nobody, metered=None, after=nobody)) == []
    assert not replace(STILL, after=replace(TOLD, api="http://two")).led


# -- the ledger -------------------------------------------------------------------------------------------------------


def step(number: int, rank: int, at: float, **more: Any) -> StepRecord:
    held = {0: "m-0", 1: "m-2"}[rank]
    return StepRecord(**{"step": number, "rank": rank, "at": at, "member": held, "generation": 2, **more})


def recovery(at: float, opened_at: float, at_step: int) -> RecoveryRecord:
    return RecoveryRecord(
        at=at,
        opened_at=opened_at,
        first_generation=2,
        generation=2,
        step=at_step,
        reasons=("killed",),
        verdict="retry",
        swaps=((1, "m-1", "m-2"),),
        phases={},
    )


def ledger(*more: StepRecord, until: float = 100.2) -> Ledger:
    """Both ranks commit a step every second; rank 0 is a little earlier."""
    steps = [step(number, rank, until - 9 + number + 0.1 * rank) for number in range(10) for rank in (0, 1)]
    return Ledger([*steps, *more], [recovery(90.0, 89.0, 0)])


def judged(moment: Moment, whole: Ledger) -> list[str]:
    return list(agreement.against_the_ledger(moment, whole, world=2))


def test_a_step_is_shown_neither_before_it_is_committed_nor_long_after() -> None:
    assert judged(STILL, ledger()) == []
    assert judged(STILL, ledger(until=100.45))  # rank 1 commits it when the moment is over
    assert judged(STILL, ledger(step(10, 0, 96.0), step(10, 1, 96.0)))
    assert judged(STILL, ledger(step(10, 0, 96.0))) == []  # the other rank has not


def test_a_rank_that_was_lost_holds_nobody_up() -> None:
    """It had not committed the last step. The other one has, so the step is committed: it will be given that."""
    steps = [step(number, rank, 90.0 + number) for number in range(10) for rank in (0, 1) if (number, rank) != (9, 1)]
    whole = Ledger(steps, [recovery(90.0, 89.0, 0)])
    assert judged(STILL, whole)
    lost = replace(TOLD, training=frozenset({0}), stage="stopping")
    assert judged(replace(STILL, before=lost, after=lost), whole) == []


def test_what_a_lost_host_had_committed_is_known_from_its_successor() -> None:
    """The records of its last moments were lost with it."""
    early = [step(number, rank, 90.0 + number) for number in range(10) for rank in (0,)]
    lost = [step(number, 1, 90.0 + number, member="m-1", generation=1) for number in range(8)]
    inherited = step(9, 1, 105.0, inherited=True)
    assert judged(STILL, Ledger([*early, *lost, inherited], [recovery(90.0, 89.0, 0)])) == []


def test_who_commits_in_a_generation_is_who_status_said() -> None:
    assert judged(STILL, ledger(step(11, 1, 101.0, member="m-9")))
    absent = Sharing(share=0, shares=2, absent=(1,))
    assert judged(STILL, ledger(step(11, 0, 101.0, sharing=absent)))


def test_recoveries_and_the_stage_are_those_of_the_ledger() -> None:
    steps = [step(number, rank, 90.0 + number) for number in range(10) for rank in (0, 1)]
    assert judged(STILL, Ledger(steps, []))
    assert judged(STILL, Ledger(steps, [recovery(90.0, 89.0, 0), recovery(91.0, 90.5, 0)]))
    assert judged(STILL, Ledger(steps, [recovery(90.0, 89.0, 0), recovery(101.0, 99.0, 0)]))


def test_how_late_a_step_was_shown() -> None:
    assert agreement.behind(STILL, ledger(), 2) == 0.0
    late = agreement.behind(STILL, ledger(step(10, 0, 98.5), step(10, 1, 98.5)), 2)
    assert 1.4 < late < 1.6


# -- reading ----------------------------------------------------------------------------------------------------------


def document(**changes: Any) -> dict[str, Any]:
    def member(rank: int | None, name: str, standing: str) -> dict[str, Any]:
        return {"rank": rank, "member": name, "host": "a", "standing": standing, "connected": True}

    job = {
        "leading": True,
        "generation": 2,
        "stage": "training",
        "world_size": 2,
        "ranks_up": 2,
        "committed_step": 10,
        "degraded": False,
        "absent_ranks": [],
        "recoveries": 1,
        "newest_event": 5,
        "spares_warm": 1,
        **changes,
    }
    return {
        "api": "http://one",
        "job": job,
        "members": [member(0, "m-0", "active"), member(1, "m-2", "active")],
        "spares": [member(None, "m-3", "parked")],
        "hosts": [{"host": "a", "ranks": [0, 1]}],
    }


def test_status_is_read_and_agrees_with_itself() -> None:
    assert agreement.from_status(document()) == TOLD
    assert list(agreement.within(document())) == []
    for wrong in ({"ranks_up": 1}, {"spares_warm": 0}, {"degraded": True}):
        assert list(agreement.within(document(**wrong))), wrong
    assert list(agreement.within({**document(), "hosts": [{"host": "a", "ranks": [0]}]}))


def test_metrics_are_read() -> None:
    page = "\n".join(
        [
            'understudy_leading{training_job="x"} 1.0',
            'understudy_generation{training_job="x"} 2.0',
            'understudy_committed_step{training_job="x"} 10.0',
            'understudy_degraded{training_job="x"} 0.0',
            *(f'understudy_ranks{{standing="{name}",training_job="x"}} {n}' for name, n in STANDINGS.items()),
            *(f'understudy_stage{{stage="{n}",training_job="x"}} {v}' for n, v in (("training", 1), ("forming", 0))),
            'understudy_recoveries_total{kind="swap",training_job="x"} 1.0',
            'understudy_recoveries_total{kind="move",training_job="x"} 0.0',
        ]
    )
    assert agreement.from_metrics(page + "\n") == METERED
