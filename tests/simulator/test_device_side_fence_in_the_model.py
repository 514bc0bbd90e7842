"""Ranks whose devices decide at the fence, while their hosts run ahead: every interleaving of a small world, seeded
runs, and bugs that are found."""

from dataclasses import replace

import pytest

from understudy.foundation.ids import MemberId, Rank
from understudy_testkit.simulator.campaign import play_range
from understudy_testkit.simulator.device import COLLECTIVE
from understudy_testkit.simulator.device_scenarios import play_with_device_side_fence
from understudy_testkit.simulator.device_side import CONTRIBUTION, FLAG, DeviceSideMember
from understudy_testkit.simulator.device_side_bugs import DEVICE_SIDE_BUGS
from understudy_testkit.simulator.explorer import Branch, explore, opening
from understudy_testkit.simulator.phases import MemberPhase
from understudy_testkit.simulator.script import Script
from understudy_testkit.simulator.seeded_bugs import SeededBug, found
from understudy_testkit.simulator.snapshot import snapshot_key

TWO = Script(world_size=2, steps=3, fenced=False, devices=True, ahead=1)
FIRST, SECOND = MemberId("m-0"), MemberId("m-1")
FAULTS = ("kill", "refill, then kill", "device fails")


def device(branch: Branch, member: MemberId) -> DeviceSideMember:
    found_member = branch.members[member]
    assert isinstance(found_member, DeviceSideMember)
    return found_member


def until(branch: Branch, member: MemberId, phase: MemberPhase, attempt: int) -> None:
    while (branch.members[member].phase, branch.members[member].attempt) != (phase, attempt):
        branch.happen(next(choice for choice in branch.choices() if choice[0] not in FAULTS))


def alone(branch: Branch, member: MemberId, what: str) -> None:
    while (what, member) in branch.choices():
        branch.happen((what, member))


def to_the_end(branch: Branch) -> None:
    while branch.outcome is None:
        branch.happen(next(choice for choice in branch.choices() if choice[0] not in FAULTS))


def both_have_begun_step_1() -> Branch:
    """Their devices have done nothing of it."""
    branch = opening(TWO, spares=1, faults=1)
    until(branch, FIRST, MemberPhase.COLLECTIVE, 1)
    while branch.members[SECOND].attempt != 1 or branch.members[SECOND].phase is not MemberPhase.COLLECTIVE:
        branch.happen(next(c for c in branch.choices() if c[0] not in FAULTS and c[1] == SECOND))
    return branch


@pytest.mark.parametrize(("ranks", "steps", "faults"), [(2, 2, 1), (3, 1, 1), (2, 1, 2)])
def test_every_interleaving_of_a_small_world_holds(ranks: int, steps: int, faults: int) -> None:
    explored = explore(replace(TWO, world_size=ranks, steps=steps), faults=faults)
    assert explored.states > 3000
    assert explored.endings.keys() <= {"succeeded", "lost after release", "no state left"}


@pytest.mark.parametrize("bug", DEVICE_SIDE_BUGS, ids=lambda bug: bug.what)
def test_a_rule_that_is_taken_out_is_missed(bug: SeededBug) -> None:
    violation = found(bug)
    assert violation is not None
    number = {"a rank reports": "3: ", "a step is recorded": "2: "}
    wanted = next((told for words, told in number.items() if words in bug.what), "10: ")
    assert str(violation).startswith(wanted)


def test_a_host_goes_past_the_fence_while_its_device_stands_before_it() -> None:
    branch = both_have_begun_step_1()
    alone(branch, FIRST, "move")
    ahead = device(branch, FIRST)
    assert (ahead.phase, ahead.attempt) == (MemberPhase.COLLECTIVE, 2), "in the next step, and no further"
    assert [kind for kind, _ in ahead.queue if kind != "optimizer"] == [COLLECTIVE, CONTRIBUTION, FLAG, COLLECTIVE]
    assert ahead.holds == 2 and len(ahead.state or ()) < 2 and ahead.unread == (1,)
    assert branch.invariants.by_rank.get(Rank(0), 0) < 2, "nothing of it is recorded"


def test_a_rank_that_hears_of_a_fault_knows_what_it_holds_once_it_has_read_its_flags() -> None:
    branch = both_have_begun_step_1()
    alone(branch, FIRST, "move")
    branch.happen(("kill", SECOND))
    branch.happen(("member hears", FIRST))
    survivor = device(branch, FIRST)
    assert survivor.phase is MemberPhase.UNWOUND and survivor.position().holds == 1
    assert not survivor.position().at_fence, "its gradients are overwritten by those of the next step"
    to_the_end(branch)
    assert set(branch.invariants.ended.values()) == {(0, 1, 2)}


def test_some_may_apply_what_others_skip_and_those_take_it_from_a_twin() -> None:
    branch = both_have_begun_step_1()
    for member in (FIRST, SECOND):
        alone(branch, member, "move")
    for _ in range(3):  # up to the flag, on both
        for member in (FIRST, SECOND):
            if device(branch, member).queue[0][0] != FLAG:
                branch.happen(("device runs", member))
    branch.happen(("device runs", FIRST))
    assert device(branch, FIRST).state == (0, 1), "it has the sum"
    branch.happen(("device fails", SECOND))
    branch.happen(("device runs", SECOND))
    assert device(branch, SECOND).state == (0,) and device(branch, SECOND).results == ((1, False),)
    to_the_end(branch)
    assert set(branch.invariants.ended.values()) == {(0, 1, 2)}


def test_what_a_host_does_not_know_is_part_of_a_state() -> None:
    branch = both_have_begun_step_1()
    before = snapshot_key(branch)
    branch.happen(("move", FIRST))
    assert snapshot_key(branch) != before


def test_hosts_may_be_ahead_by_more_than_one_step() -> None:
    branch = opening(replace(TWO, steps=4, ahead=2), spares=1, faults=1)
    until(branch, FIRST, MemberPhase.COLLECTIVE, 1)
    alone(branch, FIRST, "move")
    assert device(branch, FIRST).attempt == 3 and device(branch, FIRST).unread == (1, 2)


def test_only_worlds_of_twins_can_have_it() -> None:
    with pytest.raises(ValueError, match="twin"):
        Script(world_size=4, steps=2, fenced=True, shards=2, devices=True, ahead=1)


def test_many_seeds_hold() -> None:
    tally = play_range(range(60), play_with_device_side_fence)
    assert not tally.violations, tally.violations[0][1]
    assert tally.fired["device"] and tally.fired["contagion"] and tally.endings["succeeded"] > 40


def test_seeded_runs_find_a_bug_too() -> None:
    assert found(replace(DEVICE_SIDE_BUGS[0], game=play_with_device_side_fence), range(20)) is not None
