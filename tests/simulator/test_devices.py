"""Ranks on devices: every interleaving of a small world, seeded runs, and bugs that are found."""

from dataclasses import replace

import pytest

from understudy.foundation.ids import MemberId, Rank
from understudy.protocol import planning
from understudy.protocol.commands import Command, DecisionKind, RecordDecision
from understudy.protocol.reasons import Code
from understudy_testkit.simulator.campaign import play_range
from understudy_testkit.simulator.device import COLLECTIVE, OPTIMIZER, DeviceMember
from understudy_testkit.simulator.device_bugs import DEVICE_BUGS, as_on_synchronous_devices, explore_devices
from understudy_testkit.simulator.device_scenarios import play_on_devices
from understudy_testkit.simulator.explorer import Branch, explore, opening
from understudy_testkit.simulator.phases import MemberPhase
from understudy_testkit.simulator.script import Script
from understudy_testkit.simulator.seeded_bugs import SeededBug, found
from understudy_testkit.simulator.snapshot import snapshot_key
from understudy_testkit.simulator.world import World

TWO = Script(world_size=2, steps=2, fenced=False, devices=True)
FIRST, SECOND, SPARE = MemberId("m-0"), MemberId("m-1"), MemberId("m-2")
IN_STEP_1 = (1, MemberPhase.COLLECTIVE.value, 1)
FAULTS = ("kill", "refill, then kill", "device fails")


def device(branch: Branch, member: MemberId) -> DeviceMember:
    found_member = branch.members[member]
    assert isinstance(found_member, DeviceMember)
    return found_member


def until(branch: Branch, member: MemberId, phase: MemberPhase, attempt: int, *, alone: bool = False) -> None:
    """Play on until it is there. `alone`: only its own moves and those of its device."""
    while (branch.members[member].phase, branch.members[member].attempt) != (phase, attempt):
        allowed = (choice for choice in branch.choices() if choice[0] not in FAULTS)
        branch.happen(next(choice for choice in allowed if not alone or choice[1] == member))


def to_the_end(branch: Branch) -> None:
    while branch.outcome is None:
        branch.happen(next(choice for choice in branch.choices() if choice[0] not in FAULTS))


def both_in_step_1() -> Branch:
    branch = opening(TWO, spares=1, faults=1)
    until(branch, FIRST, MemberPhase.COLLECTIVE, 1)
    until(branch, SECOND, MemberPhase.COLLECTIVE, 1, alone=True)
    return branch


@pytest.mark.parametrize("steps", [2, 3])
def test_one_fault_anywhere_is_always_survived_or_comes_after_the_release(steps: int) -> None:
    explored = explore(replace(TWO, steps=steps), faults=1)
    assert explored.states > 2000
    assert explored.endings.keys() == {"succeeded", "lost after release"}


@pytest.mark.parametrize("bug", DEVICE_BUGS, ids=lambda bug: bug.what)
def test_a_rule_for_devices_that_is_taken_out_is_missed(bug: SeededBug) -> None:
    violation = found(bug)
    assert violation is not None
    kinds = {"reports before": "4: ", "before a boundary": "7: "}
    assert str(violation).startswith(next((kind for word, kind in kinds.items() if word in bug.what), "10: "))


def test_only_contagion_makes_the_synchronous_rule_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it survivors have genuine gradients when they have arrived, whoever else was lost."""
    monkeypatch.setattr(planning, "judge", as_on_synchronous_devices)
    monkeypatch.setattr(World, "is_contaminated", lambda *_: False)
    explore_devices(0)


def test_the_abort_of_a_rank_lets_another_one_finish_with_garbage_and_without_an_error() -> None:
    branch = both_in_step_1()
    branch.happen(("device fails", FIRST))
    until(branch, SECOND, MemberPhase.FENCE, 1, alone=True)
    survivor = device(branch, SECOND)
    assert survivor.arrived and survivor.garbage and not survivor.aborted
    assert ("move", SECOND) not in branch.choices(), "the rank that aborted never arrives, so nobody passes"
    assert survivor.position().arrived_asynchronously and not survivor.position().arrived


def test_a_collective_that_was_completed_before_the_abort_is_genuine() -> None:
    branch = both_in_step_1()
    for member in (FIRST, SECOND):
        while (COLLECTIVE, 1) in device(branch, member).queue:
            branch.happen(("device runs", member))
    device(branch, FIRST).abort(branch)
    assert not device(branch, SECOND).garbage and not branch.is_contaminated(IN_STEP_1)


def test_without_all_ranks_a_collective_hangs_until_it_is_aborted() -> None:
    branch = opening(TWO, spares=1, faults=1)
    until(branch, FIRST, MemberPhase.COLLECTIVE, 1)
    while device(branch, FIRST).device_can_run(branch):
        branch.happen(("device runs", FIRST))
    assert device(branch, FIRST).queue == ((COLLECTIVE, 1),)
    assert not device(branch, FIRST).can_move(branch)


def test_a_host_is_ahead_of_its_device_and_reports_when_that_has_come_to_rest() -> None:
    branch = opening(replace(TWO, steps=3), spares=1, faults=1)
    until(branch, FIRST, MemberPhase.FENCE, 1)
    until(branch, SECOND, MemberPhase.FENCE, 1, alone=True)
    branch.happen(("move", FIRST))
    ahead = device(branch, FIRST)
    assert ahead.queue == ((OPTIMIZER, 1),) and ahead.holds == 2 and ahead.state == (0,)
    branch.happen(("kill", SECOND))
    branch.happen(("member hears", FIRST))
    while branch.members[FIRST].phase is MemberPhase.COMPUTING:
        branch.happen(("move", FIRST))
    reporting = device(branch, FIRST)
    assert reporting.phase is MemberPhase.UNWOUND
    assert reporting.state == (0, 1) and reporting.position().holds == 2


def test_a_step_that_only_the_dead_rank_has_recorded_runs_again_and_gives_the_same() -> None:
    branch = opening(TWO, spares=1, faults=1)
    until(branch, FIRST, MemberPhase.FENCE, 1)
    until(branch, SECOND, MemberPhase.FENCE, 1, alone=True)
    decisions: list[RecordDecision] = []
    before = branch.obey

    def obey(commands: tuple[Command, ...], heard_of_commit: bool) -> None:
        decisions.extend(command for command in commands if isinstance(command, RecordDecision))
        before(commands, heard_of_commit)

    branch.obey = obey  # type: ignore[method-assign]
    branch.happen(("move", FIRST))
    assert branch.invariants.by_rank[Rank(0)] == 2, "it has passed, and recorded the step"
    branch.happen(("kill", FIRST))
    branch.happen(("member hears", SECOND))  # before it has seen that all were there
    to_the_end(branch)
    (verdict,) = [decision for decision in decisions if decision.kind is DecisionKind.VERDICT]
    assert verdict.step == 1 and verdict.reason.has(Code.NO_RANK_PASSED_FENCE)
    assert set(branch.invariants.ended.values()) == {(0, 1)}


def test_what_a_device_has_to_do_is_part_of_a_state() -> None:
    branch = both_in_step_1()
    before = snapshot_key(branch)
    other = branch.copy()
    other.happen(("device runs", FIRST))
    assert snapshot_key(other) != before and snapshot_key(branch) == before
    aborted = branch.copy()
    aborted.happen(("device fails", FIRST))
    assert aborted.is_contaminated(IN_STEP_1)
    assert not branch.is_contaminated(IN_STEP_1)


def test_many_seeds_hold() -> None:
    tally = play_range(range(60), play_on_devices)
    assert not tally.violations, tally.violations[0][1]
    assert tally.fired["device"] and tally.fired["contagion"] and tally.endings["succeeded"] > 40


def test_a_seed_repeats_a_run() -> None:
    assert play_on_devices(5) == play_on_devices(5)


def test_seeded_runs_find_the_synchronous_rule_too() -> None:
    assert found(replace(DEVICE_BUGS[0], game=play_on_devices), range(5, 13)) is not None
