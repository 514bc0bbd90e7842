"""The rules by which every arm is judged, on stories written by hand."""

from understudy_testkit.benchmark.evaluation import (
    Commit,
    Story,
    fault_result,
    samples_used,
    split_time,
    steps_lost,
    timeline,
)
from understudy_testkit.benchmark.injection import FiredFault
from understudy_testkit.benchmark.scenario import FaultKind, PlannedFault, Work

WORK = Work(ranks=2, steps=4, batch_size=1, samples=8)


def expected(step: int) -> list[list[int]]:
    return [[2 * step], [2 * step + 1]]


def commit(
    at: float, rank: int, step: int, pid: int = 0, replicas: int = 2, samples: tuple[int, ...] | None = None
) -> Commit:
    own = tuple(expected(step)[rank]) if samples is None else samples
    pid = pid or 100 + rank
    return Commit(at, rank, pid, step, 1.0, own, replicas, life=pid)


def story(*commits: Commit, births: tuple[tuple[float, int], ...] = (), notices: tuple[float, ...] = ()) -> Story:
    return Story(tuple(sorted(commits, key=lambda c: c.at)), births, notices, ())


def undisturbed() -> list[Commit]:
    return [commit(10.0 + step, rank, step) for step in range(4) for rank in range(2)]


def kill_of_rank_1(at: float) -> FiredFault:
    planned = PlannedFault(kind=FaultKind.KILL, rank=1, step=1, delay=0.0)
    return FiredFault(planned=planned, at=at, pid=101, proof="gone")


def test_a_run_without_faults_loses_nothing() -> None:
    told = story(*undisturbed())
    assert steps_lost(told) == 0
    assert samples_used(told, WORK, expected) == (0, 0, 8)
    split = split_time(told, 5.0, 2)
    assert (split.startup, split.useful, split.wasted, split.downtime, split.reduced) == (5.0, 3.0, 0.0, 0.0, 0.0)
    assert timeline(told, 5.0) == ((5.0, 0), (6.0, 1), (7.0, 2), (8.0, 3))


def test_steps_that_are_done_again_are_lost_but_their_samples_are_not() -> None:
    before = [commit(10.0 + step, rank, step) for step in range(3) for rank in range(2)]
    again = [commit(20.0 + step, rank, step, pid=200 + rank) for step in range(1, 4) for rank in range(2)]
    told = story(*before, *again)
    assert steps_lost(told) == 2
    assert samples_used(told, WORK, expected) == (0, 0, 8)
    split = split_time(told, 10.0, 2)
    assert split.wasted == 2.0 and split.useful == 3.0 and split.downtime == 8.0


def test_a_missing_rank_drops_samples_and_reduces_the_step() -> None:
    told = story(
        *[c for c in undisturbed() if (c.step, c.rank) != (2, 1) and (c.step, c.rank) != (2, 0)],
        commit(12.0, 0, 2, replicas=1),
    )
    assert samples_used(told, WORK, expected) == (1, 0, 8)
    assert split_time(told, 10.0, 2).reduced == 0.5


def test_a_process_that_died_before_its_record_does_not_drop_its_samples() -> None:
    told = story(*[c for c in undisturbed() if (c.step, c.rank) != (2, 1)])
    assert samples_used(told, WORK, expected) == (0, 0, 8)


def test_samples_that_are_read_twice_are_repeated_and_others_dropped() -> None:
    told = story(*[c for c in undisturbed() if (c.step, c.rank) != (3, 1)], commit(13.0, 1, 3, samples=(1,)))
    assert samples_used(told, WORK, expected) == (1, 1, 8)


def test_a_survivors_next_commit_proves_nothing_but_the_one_after_does() -> None:
    told = story(
        *[commit(10.0 + step, rank, step) for step in range(2) for rank in range(2)],
        commit(11.6, 0, 2),  # it was under way
        commit(15.0, 0, 3, replicas=1),
    )
    result = fault_result(told, kill_of_rank_1(11.5), 10.0, 2)
    assert result.stepping == 3.5 and result.full_strength is None and result.at == 1.5


def test_full_strength_needs_all_ranks_in_one_step_by_healthy_processes() -> None:
    told = story(
        *[commit(10.0 + step, rank, step) for step in range(2) for rank in range(2)],
        commit(11.6, 1, 2, pid=101),  # the last word of the killed process
        commit(12.0, 0, 2),
        commit(14.0, 1, 2, pid=201),
        births=((13.0, 201),),
        notices=(11.0, 11.7),
    )
    result = fault_result(told, kill_of_rank_1(11.5), 10.0, 2)
    assert result.full_strength == 2.5 and result.stepping == 2.5
    assert result.noticed is not None and abs(result.noticed - 0.2) < 1e-9
