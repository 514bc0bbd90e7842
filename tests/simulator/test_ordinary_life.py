"""Slow is not dead: members that are healthy and late at every deadline, in seeded runs; and seeded bugs."""

from collections.abc import Callable

import pytest

from understudy_testkit.simulator import ordinary_scenarios as ordinary
from understudy_testkit.simulator.campaign import play_range
from understudy_testkit.simulator.scenarios import Report
from understudy_testkit.simulator.seeded_bugs import SEEDED_BUGS, SeededBug, found

GAMES: dict[str, tuple[Callable[[int], Report], int]] = {
    "slow members": (ordinary.play_slow, 60),
    "slow hosts": (ordinary.play_slow_on_hosts, 20),
    "stopped spares": (ordinary.play_sleeping_spare, 20),
    "long transfers": (ordinary.play_slow_transfer, 6),
    "errors that pass": (ordinary.play_transient_errors, 10),
    "worlds that stand still": (ordinary.play_livelock, 6),
    "no coordinator": (ordinary.play_without_coordinator, 10),
    "evaluations": (ordinary.play_in_evaluations, 40),
}


@pytest.mark.parametrize("name", GAMES)
def test_nothing_ordinary_ends_a_healthy_job(name: str) -> None:
    game, runs = GAMES[name]
    tally = play_range(range(9000, 9000 + runs), game)
    assert not tally.violations, tally.violations[0][1]
    assert tally.runs == runs and tally.fired


@pytest.mark.parametrize("seed", [17404, 18349])
def test_a_member_that_was_busy_for_too_long_is_ended_right_after_it_was_held(seed: int) -> None:
    """The model took that for an end because of the stop, or of the debugger."""
    assert ordinary.play_slow(seed).kind == "succeeded"


@pytest.mark.parametrize("bug", SEEDED_BUGS, ids=lambda bug: bug.what)
def test_a_mending_that_is_taken_out_is_missed(bug: SeededBug) -> None:
    assert found(bug) is not None
    for seed in range(9000, 9003):
        bug.game(seed)  # and afterwards all is well again
