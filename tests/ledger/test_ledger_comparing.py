from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.ledger.made_up import all_places, bare, committed, info, write_run

from understudy.ledger.comparing import Comparison, ComparisonVerdict, Difference, compare
from understudy.ledger.reading import read_run
from understudy.ledger.records import DecisionRecord, RecoveryRecord, RunInfo, StepRecord


def compared(
    tmp_path: Path,
    left: Sequence[StepRecord],
    right: Sequence[StepRecord],
    left_info: RunInfo | None = None,
    right_info: RunInfo | None = None,
    decided: Sequence[DecisionRecord | RecoveryRecord] = (),
    incomplete: Sequence[str] = (),
) -> Comparison:
    """`decided`, `incomplete`: in the second run."""
    one = write_run(tmp_path / "a", left, run_info=left_info)
    two = write_run(tmp_path / "b", right, decided, run_info=right_info, incomplete=incomplete)
    return compare(read_run(one), read_run(two))


def changed(records: Sequence[StepRecord], step: int, rank: int, **changes: object) -> list[StepRecord]:
    return [
        msgspec.structs.replace(record, **changes) if (record.step, record.rank) == (step, rank) else record
        for record in records
    ]


def test_equal_runs_are_identical(tmp_path: Path) -> None:
    result = compared(tmp_path, all_places(), all_places())
    assert result.verdict is ComparisonVerdict.IDENTICAL
    assert result.compared == {"batch": 6, "parameters": 6, "optimizer": 6, "rng": 6, "buffers": 0, "extras": 0}
    assert result.sentence() == "identical: 3 steps on 2 ranks"


def test_who_computed_a_step_and_when_does_not_matter(tmp_path: Path) -> None:
    swapped = [
        *all_places()[:-1],
        committed(1, 1, member="m-2", generation=2, inherited=True),
        committed(2, 1, member="m-2", generation=2, attempt=1, at=999.0),
    ]
    assert compared(tmp_path, all_places(), swapped).verdict is ComparisonVerdict.IDENTICAL


@pytest.mark.parametrize("field", ["batch", "parameters", "optimizer", "rng"])
def test_one_changed_digest_is_found(tmp_path: Path, field: str) -> None:
    result = compared(tmp_path, all_places(), changed(all_places(), 1, 1, **{field: "x"}))
    assert result.verdict is ComparisonVerdict.DIFFERENT
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
    assert result.verdict is ComparisonVerdict.DIFFERENT
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
    assert result.verdict is ComparisonVerdict.DIFFERENT
    assert result.first == Difference(None, None, "world size", "2", "3")
    assert result.sentence().startswith("different, first at world size: 2 in A, 3 in B")


def test_batches_alone_are_a_weaker_verdict(tmp_path: Path) -> None:
    records = [bare(step, rank) for step in range(3) for rank in range(2)]
    result = compared(tmp_path, records, records)
    assert result.verdict is ComparisonVerdict.WEAK
    assert result.sentence() == "identical batches; no digests were taken, so equal state is not shown"


def test_digests_in_one_run_only_are_not_called_equal(tmp_path: Path) -> None:
    records = [bare(step, rank) for step in range(3) for rank in range(2)]
    result = compared(tmp_path, all_places(), records)
    assert result.verdict is ComparisonVerdict.WEAK
    assert "no digests were taken by both" in result.sentence()


def test_digests_of_different_kinds_are_not_called_different(tmp_path: Path) -> None:
    """One run was on a device, the other one on CPUs."""
    by_sums = [
        msgspec.structs.replace(one, parameters=f"sums:{one.parameters}", optimizer=f"sums:{one.optimizer}")
        for one in all_places()
    ]
    result = compared(tmp_path, all_places(), by_sums)
    assert result.verdict is ComparisonVerdict.WEAK
    assert result.sentence() == (
        "identical batches and rng; parameters and optimizer cannot be compared, because the digests are xxh3 in A and "
        "word-sums in B: run both with the same --ledger-digests"
    )
    assert compared(tmp_path / "again", by_sums, by_sums).verdict is ComparisonVerdict.IDENTICAL
    wrong = changed(by_sums, 1, 0, batch="x")
    assert compared(tmp_path / "wrong", all_places(), wrong).verdict is ComparisonVerdict.DIFFERENT


def test_different_batches_are_different_without_digests(tmp_path: Path) -> None:
    records = [bare(step, rank) for step in range(3) for rank in range(2)]
    result = compared(tmp_path, records, changed(records, 0, 1, batch="x"))
    assert result.verdict is ComparisonVerdict.DIFFERENT


def test_one_field_that_was_never_taken_is_named(tmp_path: Path) -> None:
    records = [committed(step, rank, optimizer=None) for step in range(3) for rank in range(2)]
    result = compared(tmp_path, records, records)
    assert result.verdict is ComparisonVerdict.WEAK
    assert result.sentence() == "identical batches, parameters and rng; not compared: optimizer"


def test_steps_and_ranks_alone_are_weak(tmp_path: Path) -> None:
    records = [committed(0, rank, batch=None, parameters=None, optimizer=None, rng=None) for rank in range(2)]
    result = compared(tmp_path, records, records)
    assert result.verdict is ComparisonVerdict.WEAK
    assert result.sentence() == "the same steps and ranks; not compared: batch, parameters, optimizer and rng"


def test_digests_are_compared_where_both_runs_took_them(tmp_path: Path) -> None:
    every_second = [committed(s, r) if s % 2 == 0 else bare(s, r) for s in range(4) for r in range(2)]
    result = compared(tmp_path, all_places(4), every_second)
    assert result.verdict is ComparisonVerdict.IDENTICAL
    assert result.compared == {"batch": 8, "parameters": 4, "optimizer": 4, "rng": 4, "buffers": 0, "extras": 0}
    assert result.sentence() == "identical: 4 steps on 2 ranks, with digests up to step 2"


def test_a_rank_without_the_digest_that_its_step_has_is_a_difference(tmp_path: Path) -> None:
    result = compared(tmp_path, all_places(), changed(all_places(), 1, 0, parameters=None))
    assert result.first == Difference(1, 0, "parameters", "p1", "not taken")


def test_a_successor_cannot_tell_the_random_numbers_of_the_dead(tmp_path: Path) -> None:
    """The rank died after it had applied the step and before it wrote that down."""
    inherited = committed(1, 1, member="m-2", generation=2, inherited=True, rng=None)
    records = [inherited if (record.step, record.rank) == (1, 1) else record for record in all_places()]
    result = compared(tmp_path, all_places(), records)
    assert result.verdict is ComparisonVerdict.IDENTICAL
    assert result.compared["rng"] == 5 and result.unknown["rng"] == 1
    assert result.sentence() == "identical: 3 steps on 2 ranks, rng unknown at 1 inherited"


def test_empty_runs_leave_nothing_to_compare(tmp_path: Path) -> None:
    assert compared(tmp_path, [], []).verdict is ComparisonVerdict.NOTHING


def test_an_empty_run_is_different_from_one_with_steps(tmp_path: Path) -> None:
    assert compared(tmp_path, [], all_places()).verdict is ComparisonVerdict.DIFFERENT


# -- runs that began later --------------------------------------------------------------------------------------------

RESUMED = DecisionRecord(at=1.0, generation=1, kind="checkpoint", reason="checkpoint: the job began ...", step=3)
STOPPED = DecisionRecord(at=9.0, generation=1, kind="stop", reason="every rank ended its script")


def since(step: int, of: int = 6) -> list[StepRecord]:
    """A run that began with the state before `step`, which is on record as inherited."""
    loaded = [committed(step - 1, rank, inherited=True, rng=None) for rank in range(2)]
    return [*loaded, *(record for record in all_places(of) if record.step >= step)]


def test_a_run_that_began_with_a_checkpoint_is_compared_from_there_on(tmp_path: Path) -> None:
    result = compared(tmp_path, all_places(6), since(3), decided=[RESUMED])
    assert result.verdict is ComparisonVerdict.IDENTICAL
    assert result.compared["parameters"] == 8, "three steps, and the state that was loaded"
    assert result.sentence() == "identical from step 3 on (B began there, from a checkpoint): 3 steps on 2 ranks"


def test_a_checkpoint_that_holds_another_state_is_a_difference(tmp_path: Path) -> None:
    result = compared(tmp_path, all_places(6), changed(since(3), 2, 1, parameters="x"), decided=[RESUMED])
    assert result.first == Difference(2, 1, "parameters", "p2", "x")


def test_a_run_that_began_later_without_a_word_is_known_by_its_first_record(tmp_path: Path) -> None:
    result = compared(tmp_path, all_places(6), [record for record in all_places(6) if record.step >= 4])
    assert result.verdict is ComparisonVerdict.IDENTICAL
    assert result.sentence() == "identical from step 4 on (B began there, by its first record): 2 steps on 2 ranks"


def test_two_runs_that_began_later_are_compared_from_the_later_beginning_on(tmp_path: Path) -> None:
    result = compared(tmp_path, since(4), since(3), decided=[RESUMED])
    assert result.sentence() == "identical from step 4 on (A began there, by its first record): 2 steps on 2 ranks"


def test_a_record_that_is_missing_after_the_beginning_is_a_difference(tmp_path: Path) -> None:
    records = [record for record in since(3) if (record.step, record.rank) != (4, 0)]
    result = compared(tmp_path, all_places(6), records, decided=[RESUMED])
    assert result.first == Difference(4, 0, "record", "there", "missing")


def test_first_records_that_are_missing_after_the_checkpoint_are_differences(tmp_path: Path) -> None:
    records = [record for record in all_places(6) if record.step >= 5]
    result = compared(tmp_path, all_places(6), records, decided=[RESUMED])
    assert result.first == Difference(3, 0, "record", "there", "missing")


def test_a_world_that_was_founded_again_in_the_middle_did_not_begin_there(tmp_path: Path) -> None:
    result = compared(tmp_path, all_places(6), all_places(6), decided=[RESUMED])
    assert result.sentence() == "identical: 6 steps on 2 ranks"


# -- records that could not be written --------------------------------------------------------------------------------


def test_records_that_could_not_be_written_are_no_difference(tmp_path: Path) -> None:
    records = [record for record in all_places(6) if record.step < 4 or record.rank == 0]
    result = compared(tmp_path, all_places(6), records, incomplete=["m-1"])
    assert result.verdict is ComparisonVerdict.INCOMPLETE
    assert result.sentence() == (
        "identical in all that both have; the ledger of B is incomplete (m-1): 2 records are missing, of rank 1, "
        "steps 4 to 5"
    )


def test_what_is_there_of_an_incomplete_ledger_must_be_the_same(tmp_path: Path) -> None:
    records = changed([record for record in all_places(6) if record.step < 4], 1, 1, parameters="x")
    result = compared(tmp_path, all_places(6), records, incomplete=["m-0", "m-1"])
    assert result.verdict is ComparisonVerdict.DIFFERENT and result.first == Difference(1, 1, "parameters", "p1", "x")


def test_one_members_trouble_does_not_explain_what_another_one_did_not_record(tmp_path: Path) -> None:
    records = [record for record in all_places(6) if (record.step, record.rank) not in ((4, 0), (5, 1))]
    result = compared(tmp_path, all_places(6), records, incomplete=["m-1"])
    assert result.verdict is ComparisonVerdict.DIFFERENT and result.first == Difference(
        4, 0, "record", "there", "missing"
    )


def test_a_member_of_which_nothing_could_be_written_may_have_had_any_rank(tmp_path: Path) -> None:
    records = [record for record in all_places(3) if record.rank == 0]
    assert compared(tmp_path, all_places(3), records, incomplete=["m-1"]).verdict is ComparisonVerdict.INCOMPLETE


def test_two_incomplete_ledgers_that_end_together_are_not_called_identical(tmp_path: Path) -> None:
    for name in "ab":
        write_run(tmp_path / name, all_places(3), incomplete=["m-0"])
    result = compare(read_run(tmp_path / "a"), read_run(tmp_path / "b"))
    assert result.verdict is ComparisonVerdict.INCOMPLETE
    assert "the ledger of A is incomplete (m-0): which records are missing is not known" in result.sentence()


def test_missing_decisions_do_not_weaken_what_steps_show(tmp_path: Path) -> None:
    assert (
        compared(tmp_path, all_places(), all_places(), incomplete=["decisions", "audit"]).verdict
        is ComparisonVerdict.IDENTICAL
    )


def test_a_ledger_that_was_cut_off_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    """The launcher was killed, or the disk took nothing any more, not even a mark."""
    begun = DecisionRecord(at=1.0, generation=1, kind="start", reason="the job begins")
    result = compared(tmp_path, all_places(6), all_places(4), decided=[begun])
    assert result.verdict is ComparisonVerdict.INCOMPLETE
    assert "the ledger of B does not say how its run ended: 4 records are missing, of ranks 0, 1, " in result.sentence()
    write_run(tmp_path / "c", all_places(4), [begun, STOPPED])
    assert compare(read_run(tmp_path / "a"), read_run(tmp_path / "c")).verdict is ComparisonVerdict.DIFFERENT, (
        "it was shorter"
    )


def test_records_that_were_lost_with_their_host_are_counted(tmp_path: Path) -> None:
    """Rank 1 was on it, and had committed steps 2 and 3 when the host was lost; m-7 inherited step 3."""
    lost = DecisionRecord(at=5.0, generation=1, kind="host", reason="m-1 was lost with ...", rank=1, member="m-1")
    went_on = RecoveryRecord(
        at=7.0, opened_at=6.0, first_generation=2, generation=2, step=4, reasons=("",), verdict="retry",
        swaps=((1, "m-1", "m-7"),), phases={},
    )  # fmt: skip
    there = [record for record in all_places(6) if record.rank == 0 or record.step < 2]
    heir = [committed(step, 1, member="m-7", generation=2, inherited=step == 3) for step in (3, 4, 5)]
    result = compared(tmp_path, all_places(6), [*there, *heir], decided=[lost, went_on, STOPPED])
    assert result.verdict is ComparisonVerdict.IDENTICAL
    assert result.sentence() == "identical: 6 steps on 2 ranks, 1 records lost with their host"
    later = [record for record in heir if record.step != 4]
    write_run(tmp_path / "c", [*there, *later], [lost, went_on, STOPPED])
    result = compare(read_run(tmp_path / "a"), read_run(tmp_path / "c"))
    assert result.first == Difference(4, 1, "record", "there", "missing"), "after the world went on nothing is lost"
    write_run(tmp_path / "d", [*there[1:], *heir], [lost, went_on, STOPPED])
    result = compare(read_run(tmp_path / "a"), read_run(tmp_path / "d"))
    assert result.first == Difference(0, 0, "record", "there", "missing"), "and nothing of other ranks"


# -- contradictions ---------------------------------------------------------------------------------------------------


def test_a_run_that_contradicts_itself_is_different(tmp_path: Path) -> None:
    other = committed(1, 1, member="m-2", generation=2, inherited=True, parameters="x")
    result = compared(tmp_path, all_places(), [*all_places(), other])
    assert result.verdict is ComparisonVerdict.DIFFERENT
    assert result.sentence() == (
        "different: B contradicts itself at step 1, rank 1: two values of parameters, p1 committed by m-1 in "
        "generation 1 (steps-m-1.jsonl line 2), and x inherited by m-2 in generation 2 (steps-m-2.jsonl line 1)"
    )


def test_a_contradiction_proves_nothing_where_decisions_are_missing(tmp_path: Path) -> None:
    """A decision to go back may be among them: then the later generation counts."""
    void = [committed(2, 1, generation=1, parameters="void")]
    again = [record for record in all_places() if (record.step, record.rank) != (2, 1)]
    result = compared(tmp_path, all_places(), [*void, *again, committed(2, 1, generation=2)], incomplete=["decisions"])
    assert result.verdict is ComparisonVerdict.IDENTICAL


# -- rank-local buffers -----------------------------------------------------------------------------------------------


def with_buffers(records: Sequence[StepRecord]) -> list[StepRecord]:
    return [msgspec.structs.replace(record, buffers=f"s{record.step}.{record.rank}") for record in records]


def test_buffers_of_a_rank_are_compared_where_both_runs_have_them(tmp_path: Path) -> None:
    result = compared(tmp_path, with_buffers(all_places()), with_buffers(all_places()))
    assert result.verdict is ComparisonVerdict.IDENTICAL and result.compared["buffers"] == 6


def test_a_run_without_such_buffers_is_not_compared_any_weaker(tmp_path: Path) -> None:
    assert compared(tmp_path, with_buffers(all_places()), all_places()).verdict is ComparisonVerdict.IDENTICAL


def test_buffers_that_a_successor_could_not_know_are_counted(tmp_path: Path) -> None:
    inherited = committed(1, 1, member="m-2", generation=2, inherited=True)
    records = [record for record in with_buffers(all_places()) if (record.step, record.rank) != (1, 1)]
    result = compared(tmp_path, with_buffers(all_places()), [*records, inherited])
    assert result.sentence() == "identical: 3 steps on 2 ranks, buffers unknown at 1 inherited"


def test_a_difference_in_buffers_alone_is_said_to_be_one(tmp_path: Path) -> None:
    result = compared(tmp_path, with_buffers(all_places()), changed(with_buffers(all_places()), 2, 1, buffers="x"))
    assert result.verdict is ComparisonVerdict.DIFFERENT
    assert result.sentence() == (
        "different, first at step 2, rank 1, buffers: s2.1 in A, x in B, and nowhere else: batches, parameters and "
        "optimizer are the same wherever both have them"
    )
