"""Slow ranks, on made-up times."""

import itertools
import random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.detection.made_up_world import Seconds, World, ordinary

from understudy.detection.contract import Action
from understudy.detection.straggler import StragglerDetector, _median_without

LEARNT = 120  # steps after which the detector knows its world


def slowed(usual: Seconds, who: int, since: int, factor: float, until: int = 10**9) -> Seconds:
    return lambda rank, step: usual(rank, step) * (factor if rank == who and since <= step < until else 1.0)


def world(seconds: Seconds, size: int = 4) -> World:
    return World(StragglerDetector(), size, seconds)


@pytest.mark.parametrize("seed", range(12))
def test_ten_thousand_ordinary_steps_raise_no_alarm(seed: int) -> None:
    size = (2, 3, 4, 8)[seed % 4]
    step = (0.02, 0.2, 1.5)[seed % 3]
    assert world(ordinary(seed, size, step=step), size).run(10_000) == []


@pytest.mark.parametrize("noise", [0.2, 0.4])
def test_a_very_noisy_world_makes_the_detector_deaf_rather_than_nervous(noise: float) -> None:
    for seed in range(4):
        assert world(ordinary(seed, 4, noise=noise, spikes=0.03)).run(10_000) == []


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(2, 8),
    who=st.integers(0, 7),
    step=st.sampled_from([0.1, 0.2, 0.5, 2.0]),
    offset=st.integers(0, 40),
    noise=st.sampled_from([0.01, 0.03, 0.06]),
)
def test_a_rank_slowed_by_half_is_found_within_30_steps(
    seed: int, size: int, who: int, step: float, offset: int, noise: float
) -> None:
    who %= size
    since = LEARNT + offset
    place = world(slowed(ordinary(seed, size, step=step, noise=noise), who, since, 1.5), size)
    assert place.run(since) == []
    found = place.run(30)
    assert [evidence.rank for evidence in found] == [who]
    (evidence,) = found
    assert evidence.kind == "straggler" and evidence.action is Action.MOVE and evidence.member == f"m-{who}"
    assert f"rank {who} (m-{who}) computes 1." in evidence.text and "ms" in evidence.text


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_very_short_steps_are_found_within_seconds(seed: int) -> None:
    place = world(slowed(ordinary(seed, 4, step=0.01), 1, 3000, 1.5))
    assert place.run(3000) == []
    begun = place.now
    (evidence,) = place.run(1000)
    assert evidence.rank == 1 and evidence.at - begun < 15.0  # of which pauses of the whole machine take most


def test_a_rank_that_has_always_been_slower_is_its_own_measure() -> None:
    usual = ordinary(1, 4)

    def seconds(rank: int, step: int) -> float:
        return usual(rank, step) * (1.3 if rank == 2 else 1.0)

    place = world(seconds)
    assert place.run(2000) == []
    slower = world(slowed(seconds, 2, 1000, 1.5))
    (evidence,) = slower.run(1030)
    assert evidence.rank == 2 and "usually 1.3" in evidence.text


def test_a_rank_that_was_slow_from_the_start_is_noted_once_and_not_moved() -> None:
    place = world(slowed(ordinary(2, 4), 3, 0, 2.0))
    (evidence,) = place.run(3000)
    assert evidence.rank == 3 and evidence.action is Action.NOTE and "since it began" in evidence.text


def test_a_hiccup_of_ten_steps_is_no_slowness() -> None:
    usual = ordinary(3, 4)
    place = world(slowed(usual, 0, 500, 3.0, until=510))
    assert place.run(2000) == []


def test_it_is_said_once_and_again_after_a_while_and_so_is_its_end() -> None:
    place = world(slowed(ordinary(4, 4, step=1.0, drift=0.0), 0, 200, 1.6, until=1200))
    place.run(1400)
    *again, (ended_at, end) = place.found
    assert len(again) >= 3 and all(evidence.action is Action.MOVE for _step, evidence in again)
    times = [evidence.at for _step, evidence in again]
    assert all(later - earlier >= 600 for earlier, later in itertools.pairwise(times))
    assert end.action is Action.NOTE and "as fast as before again" in end.text and 1200 < ended_at < 1240


def test_slowness_never_becomes_normal_and_the_others_are_not_accused_when_it_ends() -> None:
    """With two ranks, one that gets fast again looks as if the other one got slow."""
    place = world(slowed(ordinary(5, 2), 0, 200, 1.6, until=3000), size=2)
    place.run(5000)
    assert {evidence.rank for _step, evidence in place.found} == {0}


def test_a_new_member_is_learnt_anew_and_so_are_all() -> None:
    place = world(slowed(ordinary(6, 2), 0, 200, 1.6, until=500), size=2)
    place.run(500)
    place.seat(0, "m-9")
    assert place.run(3000) == [], "the successor is as fast as the first one was"
    first_steps = random.Random(1)
    cold = ordinary(7, 4)
    place = world(lambda rank, step: cold(rank, step) * (first_steps.uniform(2, 9) if step % 400 < 3 else 1.0))
    for number in range(4):
        assert place.run(400) == []
        place.seat(number, f"m-{number + 10}")


def test_two_slow_ranks_of_five_are_both_found() -> None:
    usual = ordinary(8, 5)
    place = world(slowed(slowed(usual, 1, 200, 1.6), 4, 205, 1.6), size=5)
    place.run(240)
    assert {evidence.rank for _step, evidence in place.found} == {1, 4}


def test_one_rank_alone_is_never_judged() -> None:
    assert world(slowed(ordinary(9, 1), 0, 200, 9.0), size=1).run(1000) == []


@given(st.lists(st.floats(0.1, 9.0), min_size=2, max_size=12))
def test_the_median_of_the_others(values: list[float]) -> None:
    for place, one in enumerate(values):
        assert _median_without(sorted(values), one) == median([*values[:place], *values[place + 1 :]])
