"""Every interleaving of a small world keeps every invariant; a seeded bug is found."""

import pytest

from understudy.foundation.ids import MemberId
from understudy_testkit.simulator.explorer import explore, opening
from understudy_testkit.simulator.phases import MemberPhase
from understudy_testkit.simulator.script import Script
from understudy_testkit.simulator.seeded_bugs import found_by_explorer
from understudy_testkit.simulator.snapshot import snapshot_key


def small(*, fenced: bool, steps: int = 2) -> Script:
    return Script(world_size=3, steps=steps, fenced=fenced)


@pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "unfenced"])
def test_one_kill_anywhere_is_always_survived_or_comes_after_the_release(fenced: bool) -> None:
    found = explore(small(fenced=fenced), faults=1)
    assert found.states > 1000
    assert found.endings.keys() == {"succeeded", "lost after release"}


def test_two_kills_in_a_world_of_one_step() -> None:
    found = explore(small(fenced=False, steps=1), faults=2)
    assert found.endings["succeeded"]


def test_without_faults_there_is_one_ending() -> None:
    assert explore(small(fenced=True), faults=0).endings == {"succeeded": 1}


@pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "unfenced"])
def test_the_planted_bug_is_found_with_the_choices_that_lead_to_it(fenced: bool) -> None:
    violation = found_by_explorer(fenced)
    assert violation is not None
    assert "already committed" in str(violation) and "kill m-" in str(violation)


def test_a_copy_does_not_touch_the_original() -> None:
    branch = opening(small(fenced=True), spares=1, faults=1)
    before = snapshot_key(branch)
    for choice in branch.choices():
        other = branch.copy()
        other.happen(choice)
    assert snapshot_key(branch) == before


def test_a_world_without_a_fence_must_be_all_twins() -> None:
    with pytest.raises(ValueError, match="twin"):
        Script(world_size=4, steps=1, fenced=False, shards=2)


def test_a_member_that_was_interrupted_in_an_evaluation_says_so_in_every_generation() -> None:
    """As a real one does: its script still stands there."""
    survivor = MemberId("m-1")
    branch = opening(Script(world_size=3, steps=2, fenced=True, tail_every=2, tail_length=1), spares=1, faults=2)
    while branch.members[survivor].phase is not MemberPhase.EVALUATING:
        branch.happen(next(choice for choice in branch.choices() if choice[0] != "kill"))
    for other in (MemberId("m-0"), MemberId("m-2")):
        branch.happen(("kill", other))
        branch.happen(("member hears", survivor))
        assert branch.members[survivor].position().in_tail
