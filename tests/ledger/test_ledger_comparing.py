from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.ledger.made_up import all_places, bare, committed, info, write_run

from understudy.ledger.comparing import Comparison, Difference, Verdict, compare
from understudy.ledger.reading import read_run
from understudy.ledger.records import RunInfo, StepRecord


def compared(
    tmp_path: Path,
    left: Sequence[StepRecord],
    right: Sequence[StepRecord],
    left_info: RunInfo | None = None,
    right_info: RunInfo | None = None,
) -> Comparison:
    one = write_run(tmp_path / "a", left, run_info=left_info)
    two = write_run(tmp_path / "b", right, run_info=right_info)
    return compare(read_run(one), read_run(two))


def changed(records: Sequence[StepRecord], step: int, rank: int, **changes: object) -> list[StepRecord]:
    return [
        msgspec.structs.replace(record, **changes) if (record.step, record.rank) == (step, rank) else record
        for record in records
    ]


def test_equal_runs_are_identical(tmp_path: Path) -> None:
    result = compared(tmp_path, all_places(), all_places())
    assert result.verdict is Verdict.IDENTICAL
    assert result.compared == {"batch": 6, "parameters": 6, "optimizer": 6, "rng": 6}
    assert result.sentence() == "identical: 3 steps on 2 ranks"


def test_who_computed_a_step_and_when_does_not_matter(tmp_path: Path) -> None:
    swapped = [
        *all_places()[:-1],
        committed(1, 1, member="m-2", generation=2, inherited=True),
        committed(2, 1, member="m-2", generation=2, attempt=1, at=999.0),
    ]
    assert compared(tmp_path, all_places(), swapped).verdict is Verdict.IDENTICAL


@pytest.mark.parametrize("field", ["batch", "parameters", "optimizer", "rng"])
def test_one_changed_digest_is_found(tmp_path: Path, field: str) -> None:
    result = compared(tmp_path, all_places(), changed(all_places(), 1, 1, **{field: "x"}))
    assert result.verdict is Verdict.DIFFERENT
    assert result.first == Difference(1, 1, field, getattr(committed(1, 1), field), "x")
    assert result.differing_places == 1


def test_the_first_difference_is_by_step_then_rank_then_field(tmp_path: Path) -> None:
    right = changed(all_places(), 2, 0, batch="x")
    right = changed(right, 1, 1, rng="x", parameters="x")
    right = changed(right, 2, 1, batch="x")
    result = compared(tmp_path, all_places(), right)
    assert result.first == Difference(1, 1, "parameters", "p1", "x")
    assert result.sentence() == "different, first at step 1, rank 1, parameters: p1 in A, x in B (3 places differ)"


def test_a_missing_place_is_a_difference(tmp_path: Path) -> None:
    gap = [record for record in all_places() if (record.step, record.rank) != (1, 0)]
    result = compared(tmp_path, gap, all_places())
    assert result.verdict is Verdict.DIFFERENT
    assert result.first == Difference(1, 0, "record", "missing", "there")


def test_the_same_place_missing_in_both_is_a_difference_too(tmp_path: Path) -> None:
    gap = [record for record in all_places() if record.step != 1]
    result = compared(tmp_path, gap, gap)
    assert result.first == Difference(1, 0, "record", "missing", "missing")
    assert result.differing_places == 2


def test_a_shorter_run_is_different(tmp_path: Path) -> None:
    result = compared(tmp_path, all_places(3), all_places(2))
    assert result.first == Difference(2, 0, "record", "there", "missing")
    assert result.steps == (3, 2)


def test_another_world_size_is_the_first_difference(tmp_path: Path) -> None:
    result = compared(tmp_path, all_places(), all_places(3, 3), right_info=info(world_size=3))
    assert result.verdict is Verdict.DIFFERENT
    assert result.first == Difference(None, None, "world size", "2", "3")
    assert result.sentence().startswith("different, first at world size: 2 in A, 3 in B")


def test_batches_alone_are_a_weaker_verdict(tmp_path: Path) -> None:
    records = [bare(step, rank) for step in range(3) for rank in range(2)]
    result = compared(tmp_path, records, records)
    assert result.verdict is Verdict.WEAK
    assert result.sentence() == "identical batches; no digests were taken, so equal state is not shown"


def test_digests_in_one_run_only_are_not_called_equal(tmp_path: Path) -> None:
    records = [bare(step, rank) for step in range(3) for rank in range(2)]
    result = compared(tmp_path, all_places(), records)
    assert result.verdict is Verdict.WEAK
    assert "no digests were taken by both" in result.sentence()


def test_different_batches_are_different_without_digests(tmp_path: Path) -> None:
    records = [bare(step, rank) for step in range(3) for rank in range(2)]
    result = compared(tmp_path, records, changed(records, 0, 1, batch="x"))
    assert result.verdict is Verdict.DIFFERENT


def test_one_field_that_was_never_taken_is_named(tmp_path: Path) -> None:
    records = [committed(step, rank, optimizer=None) for step in range(3) for rank in range(2)]
    result = compared(tmp_path, records, records)
    assert result.verdict is Verdict.WEAK
    assert result.sentence() == "identical batches, parameters and rng; not compared: optimizer"


def test_steps_and_ranks_alone_are_weak(tmp_path: Path) -> None:
    records = [committed(0, rank, batch=None, parameters=None, optimizer=None, rng=None) for rank in range(2)]
    result = compared(tmp_path, records, records)
    assert result.verdict is Verdict.WEAK
    assert result.sentence() == "the same steps and ranks; not compared: batch, parameters, optimizer and rng"


def test_digests_are_compared_where_both_runs_took_them(tmp_path: Path) -> None:
    every_second = [committed(s, r) if s % 2 == 0 else bare(s, r) for s in range(4) for r in range(2)]
    result = compared(tmp_path, all_places(4), every_second)
    assert result.verdict is Verdict.IDENTICAL
    assert result.compared == {"batch": 8, "parameters": 4, "optimizer": 4, "rng": 4}
    assert result.sentence() == "identical: 4 steps on 2 ranks, with digests up to step 2"


def test_a_rank_without_the_digest_that_its_step_has_is_a_difference(tmp_path: Path) -> None:
    result = compared(tmp_path, all_places(), changed(all_places(), 1, 0, parameters=None))
    assert result.first == Difference(1, 0, "parameters", "p1", "not taken")


def test_a_successor_cannot_tell_the_random_numbers_of_the_dead(tmp_path: Path) -> None:
    """The rank died after it had applied the step and before it wrote that down."""
    inherited = committed(1, 1, member="m-2", generation=2, inherited=True, rng=None)
    records = [inherited if (record.step, record.rank) == (1, 1) else record for record in all_places()]
    result = compared(tmp_path, all_places(), records)
    assert result.verdict is Verdict.IDENTICAL
    assert result.compared["rng"] == 5 and result.unknown["rng"] == 1
    assert result.sentence() == "identical: 3 steps on 2 ranks, rng unknown at 1 inherited"


def test_empty_runs_leave_nothing_to_compare(tmp_path: Path) -> None:
    assert compared(tmp_path, [], []).verdict is Verdict.NOTHING


def test_an_empty_run_is_different_from_one_with_steps(tmp_path: Path) -> None:
    assert compared(tmp_path, [], all_places()).verdict is Verdict.DIFFERENT
