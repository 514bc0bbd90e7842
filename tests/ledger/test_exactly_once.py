"""Exactly-once data is shown by the ledger, or it is said where it is not."""

import argparse
from pathlib import Path

import msgspec
import pytest
from tests.ledger.made_up import committed, info, write_run

from understudy.cli import verify
from understudy.ledger.comparing import ComparisonVerdict
from understudy.ledger.exactly_once import Proof, prove
from understudy.ledger.reading import read_run
from understudy.ledger.records import DecisionRecord, RecoveryRecord, Sharing, StepRecord, Taken
from understudy.protocol.sharing_out import SharingOut

RANKS, SIZE = 4, 5


def degraded(step: int, absent: tuple[int, ...]) -> list[StepRecord]:
    """What the ranks that are present record of a step."""
    plan = SharingOut(RANKS, absent)
    found = []
    for rank in plan.present():
        pieces = [(piece.share, piece.samples(SIZE)) for piece in plan.pieces_of(rank)]
        taken = tuple(
            Taken(share=share, start=some.start, stop=some.stop, size=SIZE, batch=f"b{step}.{share}")
            for share, some in pieces
            if some
        )
        found.append(committed(step, rank, sharing=Sharing(share=rank, shares=RANKS, absent=absent, taken=taken)))
    return found


def whole(*steps: int) -> list[StepRecord]:
    return [committed(step, rank) for step in steps for rank in range(RANKS)]


def proof_of(folder: Path, records: list[StepRecord], against: list[StepRecord] | None = None) -> Proof:
    run = read_run(write_run(folder / "run", records, run_info=info(RANKS)))
    other = None if against is None else read_run(write_run(folder / "other", against, run_info=info(RANKS)))
    return prove(run, other)


def test_a_run_that_was_degraded_for_some_steps(tmp_path: Path) -> None:
    records = [*whole(0), *degraded(1, (2,)), *degraded(2, (0, 2)), *whole(3)]
    proof = proof_of(tmp_path, records, against=whole(0, 1, 2, 3))
    assert proof.holds and proof.degraded == (1, 2) and proof.compared == 16
    assert proof.sentence() == (
        "every sample of 4 steps was used once, 2 of them without some ranks; 16 batches are those of the other run"
    )


def test_steps_that_could_not_be_written_are_not_held_against_the_run(tmp_path: Path) -> None:
    records = [*whole(0), *degraded(1, (2,)), *whole(2)]
    some = [record for record in records if (record.step, record.rank) not in ((1, 0), (2, 0))]
    run = read_run(write_run(tmp_path / "run", some, run_info=info(RANKS), incomplete=["m-0"]))
    proof = prove(run)
    assert proof.flaws == () and proof.unwritten == (1, 2) and not proof.holds
    assert proof.sentence() == (
        "of 2 steps nothing can be shown: the ledger is incomplete; every sample of the other 1 steps was used once"
    )


def test_steps_whose_records_were_lost_with_their_host_are_inferred(tmp_path: Path) -> None:
    lost = DecisionRecord(at=5.0, generation=1, kind="host", reason="m-2 was lost with ...", rank=2, member="m-2")
    went_on = RecoveryRecord(
        at=7.0, opened_at=6.0, first_generation=2, generation=2, step=3, reasons=("",), verdict="retry", swaps=(),
        phases={},
    )  # fmt: skip
    there = [record for record in whole(0, 1, 2) if record.rank != 2 or record.step == 0]
    run = read_run(write_run(tmp_path, [*there, *degraded(3, (2,))], [lost, went_on], run_info=info(RANKS)))
    assert prove(run).holds and prove(run).inferred == (1, 2)


def test_steps_before_the_beginning_of_a_run_are_not_looked_for(tmp_path: Path) -> None:
    proof = proof_of(tmp_path, [*whole(4), *degraded(5, (2,))])
    assert proof.holds and proof.steps == 2


def test_the_successor_of_an_absent_rank_inherits_a_step_to_which_it_gave_nothing(tmp_path: Path) -> None:
    heir = committed(1, 2, member="m-9", inherited=True, rng=None)
    assert proof_of(tmp_path, [*whole(0), *degraded(1, (2,)), heir, *whole(2)]).holds


def test_a_rank_that_died_before_it_could_write(tmp_path: Path) -> None:
    records = [record for record in degraded(0, (2,)) if record.rank != 1]
    assert "no rank worked on share 1" in proof_of(tmp_path / "a", records).sentence()
    wrong_heir = committed(0, 2, member="m-9", inherited=True)
    assert not proof_of(tmp_path / "b", [*records, wrong_heir]).holds
    heir = committed(0, 1, member="m-9", inherited=True)
    proof = proof_of(tmp_path / "c", [*records, heir])
    assert proof.holds and proof.inferred == (0,) and "in 1 a lost member must have used the rest" in proof.sentence()


def test_ranks_that_died_or_were_benched_before_they_could_write_and_the_next_step_is_done_without_them(
    tmp_path: Path,
) -> None:
    records = [record for record in whole(0) if record.rank < 2]
    assert "no member recorded rank 2" in proof_of(tmp_path / "a", records).sentence()
    assert "no member recorded rank 3" in proof_of(tmp_path / "b", [*records, *degraded(1, (2,))]).sentence()
    proof = proof_of(tmp_path / "c", [*records, *degraded(1, (2, 3))], against=whole(0, 1))
    assert proof.holds and proof.inferred == (0,) and proof.compared == 6
    again = [record for record in degraded(0, (2,)) if record.rank != 1]
    proof = proof_of(tmp_path / "d", [*again, *degraded(1, (1, 2))])
    assert proof.holds and proof.inferred == (0,)


def test_nobody_else_took_a_sample_of_the_batch_that_the_dead_rank_worked_on(tmp_path: Path) -> None:
    """Without ranks 1 and 3 rank 0 takes the batch of one, rank 2 that of the other; then rank 0 dies."""
    records = [record for record in degraded(0, (1, 3)) if record.rank == 2]
    assert "no rank worked on share 0" in proof_of(tmp_path / "a", records).sentence()
    proof = proof_of(tmp_path / "b", [*records, *degraded(1, (0, 1, 3))], against=whole(0, 1))
    assert proof.holds and proof.inferred == (0,) and proof.degraded == (0, 1)


def change(records: list[StepRecord], rank: int, **changes: object) -> list[StepRecord]:
    """The same, but one rank has taken something else."""
    found = []
    for record in records:
        sharing = record.sharing
        if record.rank == rank and sharing is not None:
            first = msgspec.structs.replace(sharing.taken[0], **changes)
            sharing = msgspec.structs.replace(sharing, taken=(first,))
        found.append(msgspec.structs.replace(record, sharing=sharing))
    return found


@pytest.mark.parametrize(
    ("records", "flaw"),
    [
        (whole(0)[:-1], "no member recorded rank 3"),
        (change(degraded(0, (3,)), 0, start=1), "samples 0 to 0 of share 3 were left out"),
        (change(degraded(0, (3,)), 1, start=0), "samples 0 to 0 of share 3 were used twice"),
        (change(degraded(0, (3,)), 2, stop=4), "left out after the first 4"),
        (change(degraded(0, (3,)), 2, share=1), "share 1, which was not absent, were used twice"),
        ([*degraded(0, (3,))[:2], degraded(0, (1, 3))[1]], "do not agree on which ranks were absent"),
        (degraded(0, (3,))[1:], "no rank worked on share 0"),
    ],
)
def test_flaws(tmp_path: Path, records: list[StepRecord], flaw: str) -> None:
    proof = proof_of(tmp_path, records)
    assert not proof.holds and flaw in proof.sentence()


def test_another_batch_than_that_of_the_absent_rank(tmp_path: Path) -> None:
    records = degraded(0, (3,))
    one = change(records, 1, batch="b7.3")
    assert "not all cut from the same batch" in proof_of(tmp_path / "a", one).sentence()
    for rank in range(3):
        records = change(records, rank, batch="b7.3")
    assert proof_of(tmp_path / "b", records).holds
    assert "the batch of rank 3 was another one" in proof_of(tmp_path / "c", records, against=whole(0)).sentence()


def test_ranks_of_one_share_say_the_same(tmp_path: Path) -> None:
    taken = Taken(share=1, start=0, stop=SIZE, size=SIZE)
    sharing = Sharing(share=0, shares=2, absent=(1,), taken=(taken,))
    both = [committed(0, rank, sharing=sharing) for rank in (0, 1)]
    assert proof_of(tmp_path / "a", both).holds
    other = msgspec.structs.replace(sharing, taken=())
    assert (
        "did not take the same samples"
        in proof_of(tmp_path / "b", [both[0], committed(0, 1, sharing=other)]).sentence()
    )


def test_nothing_on_record(tmp_path: Path) -> None:
    proof = proof_of(tmp_path, [])
    assert not proof.holds and proof.sentence() == "no step is on record"


def test_verify_says_it_of_a_degraded_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_run(tmp_path / "a", whole(0, 1), run_info=info(RANKS))
    two = write_run(tmp_path / "b", [*whole(0), *degraded(1, (2,))], run_info=info(RANKS))
    parser = argparse.ArgumentParser()
    verify.add_arguments(parser)
    assert verify.main(parser.parse_args([str(one), str(two)])) == verify.EXIT_CODES[ComparisonVerdict.DIFFERENT]
    *_, data, verdict = capsys.readouterr().out.splitlines()
    assert data.startswith("data of B  every sample of 2 steps was used once, 1 of them without some ranks")
    assert verdict.startswith("different, first at step 1, rank 2, record")
