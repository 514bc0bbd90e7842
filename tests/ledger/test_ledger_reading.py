import os
from pathlib import Path

import pytest
from tests.ledger.made_up import all_places, bare, committed, info, swap_decisions, write_run

from understudy.errors import LedgerError
from understudy.ledger.reading import read_run
from understudy.ledger.records import DecisionRecord
from understudy.ledger.run import Shortfall
from understudy.ledger.writing import gap_line, line_of


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, all_places(), swap_decisions()))
    assert run.info == info()
    assert run.step_count == 3 and run.ranks == range(2)
    assert run.steps == {(record.step, record.rank): record for record in all_places()}
    assert [record.kind for record in run.decisions][:2] == ["start", "swap"]
    assert len(run.recoveries) == 1 and run.recoveries[0].swaps == ((1, "m-1", "m-2"),)
    assert run.torn == () and run.repeated == 0 and list(run.missing()) == []


def test_a_run_without_steps_or_decisions_is_empty_not_damaged(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, []))
    assert run.step_count == 0 and run.steps == {}


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"is not the folder of a run: it has no run\.json"):
        read_run(tmp_path)


def test_a_damaged_run_json_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, [])
    (tmp_path / "run.json").write_text('{"job": 3}')
    with pytest.raises(LedgerError, match=r"run\.json cannot be read"):
        read_run(tmp_path)


@pytest.mark.parametrize("name", ["steps-m-1.jsonl", "decisions.jsonl"])
def test_a_torn_last_line_is_left_out_and_counted(tmp_path: Path, name: str) -> None:
    write_run(tmp_path, all_places(), swap_decisions())
    file = tmp_path / "ledger" / name
    file.write_bytes(file.read_bytes()[:-9])
    run = read_run(tmp_path)
    assert run.torn == (name,)
    if name.startswith("steps"):
        assert list(run.missing()) == [(2, 1)]


def test_a_last_line_that_only_lacks_its_end_of_line_counts(tmp_path: Path) -> None:
    write_run(tmp_path, all_places())
    file = tmp_path / "ledger" / "steps-m-1.jsonl"
    file.write_bytes(file.read_bytes()[:-1])
    assert read_run(tmp_path).steps[(2, 1)] == committed(2, 1)


@pytest.mark.parametrize("damage", [b'{"step": 1, "ra\n', b"\n", b"\0\0\0\n", b'{"step": "one"}\n'])
def test_damage_before_the_last_line_names_file_and_line(tmp_path: Path, damage: bytes) -> None:
    write_run(tmp_path, all_places())
    file = tmp_path / "ledger" / "steps-m-1.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + damage + lines[2])
    with pytest.raises(LedgerError, match=r"steps-m-1\.jsonl line 2 is damaged"):
        read_run(tmp_path)


def test_a_damaged_last_line_with_its_end_of_line_is_no_tear(tmp_path: Path) -> None:
    write_run(tmp_path, all_places())
    file = tmp_path / "ledger" / "steps-m-0.jsonl"
    file.write_bytes(file.read_bytes() + b"{\n")
    with pytest.raises(LedgerError, match=r"steps-m-0\.jsonl line 4 is damaged"):
        read_run(tmp_path)


def test_an_unknown_kind_of_decision_is_damage(tmp_path: Path) -> None:
    write_run(tmp_path, [])
    (tmp_path / "ledger" / "decisions.jsonl").write_bytes(b'{"type":"gossip","at":1.0}\n')
    with pytest.raises(LedgerError, match=r"decisions\.jsonl line 1 is damaged"):
        read_run(tmp_path)


def test_a_rank_outside_the_world_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, [committed(0, 2)])
    with pytest.raises(LedgerError, match="step 0 of rank 2 is outside this run of 2 ranks"):
        read_run(tmp_path)


def test_an_inherited_record_stands_beside_the_one_of_the_predecessor(tmp_path: Path) -> None:
    inherited = committed(2, 1, member="m-2", generation=2, inherited=True)
    run = read_run(write_run(tmp_path, [*all_places(), inherited]))
    assert run.repeated == 1
    assert run.steps[(2, 1)] == committed(2, 1), "the record of who committed it is kept"


def test_an_inherited_record_may_stand_alone(tmp_path: Path) -> None:
    """The predecessor died between applying the step and writing it down."""
    inherited = committed(2, 1, member="m-2", generation=2, inherited=True)
    run = read_run(write_run(tmp_path, [*all_places()[:-1], inherited]))
    assert run.repeated == 0 and run.steps[(2, 1)] == inherited


def test_digests_of_both_records_are_put_together(tmp_path: Path) -> None:
    inherited = committed(1, 1, member="m-2", generation=2, inherited=True, batch=None, rng=None)
    run = read_run(write_run(tmp_path, [bare(1, 1), inherited]))
    assert run.steps[(1, 1)] == committed(1, 1, rng=None)


def test_two_members_may_commit_the_same_step_after_the_world_started_over(tmp_path: Path) -> None:
    again = committed(0, 1, member="m-3", generation=2)
    run = read_run(write_run(tmp_path, [committed(0, 1), again]))
    assert run.repeated == 1


@pytest.mark.parametrize("generation", [1, 2])
def test_a_step_committed_twice_by_one_member_is_a_finding_that_names_both_lines(
    tmp_path: Path, generation: int
) -> None:
    records = [committed(0, 0), committed(1, 0), committed(0, 0, generation=generation)]
    (conflict,) = read_run(write_run(tmp_path, records)).conflicts
    assert (conflict.step, conflict.rank, conflict.field) == (0, 0, "commit")
    assert "the same member committed it twice" in str(conflict)
    assert "steps-m-0.jsonl line 1" in str(conflict) and "steps-m-0.jsonl line 3" in str(conflict)


@pytest.mark.parametrize("field", ["batch", "parameters", "optimizer", "rng"])
def test_records_that_contradict_each_other_are_a_finding_that_names_both(tmp_path: Path, field: str) -> None:
    """A CNN whose replicas have batch-norm statistics of their own does this at every swap."""
    other = committed(2, 1, member="m-2", generation=2, inherited=True, **{field: "other"})
    run = read_run(write_run(tmp_path, [*all_places(), other]))
    (conflict,) = run.conflicts
    assert (conflict.step, conflict.rank, conflict.field) == (2, 1, field)
    assert (conflict.first, conflict.second) == (getattr(committed(2, 1), field), "other")
    assert "committed by m-1 in generation 1" in conflict.first_by
    assert "inherited by m-2 in generation 2" in conflict.second_by
    assert run.repeated == 0 and run.steps[(2, 1)] == committed(2, 1), "the record of who committed it is kept"


def test_a_ledger_without_digests_of_buffers_is_read(tmp_path: Path) -> None:
    """They came later than the others."""
    assert b"buffers" not in line_of(committed(0, 0))
    assert read_run(write_run(tmp_path, [committed(0, 0)])).steps[(0, 0)].buffers is None


# -- what could not be written ----------------------------------------------------------------------------------------


def test_a_line_that_was_cut_off_before_a_gap_is_explained_by_it(tmp_path: Path) -> None:
    write_run(tmp_path, all_places())
    file = tmp_path / "ledger" / "steps-m-1.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1][:-20] + b"\n" + gap_line("No space left on device", lost=1) + lines[2])
    run = read_run(tmp_path)
    assert run.shortfalls == (Shortfall(writer="m-1", ranks=frozenset({1}), why="No space left on device"),)
    assert list(run.missing()) == [(1, 1)] and run.torn == ()
    assert run.lacks_steps_of(1) and not run.lacks_steps_of(0) and not run.lacks_decisions


def test_a_gap_among_decisions(tmp_path: Path) -> None:
    write_run(tmp_path, [], swap_decisions()[:1])
    file = tmp_path / "ledger" / "decisions.jsonl"
    file.write_bytes(file.read_bytes() + gap_line("the file was removed", lost=3) + line_of(swap_decisions()[1]))
    run = read_run(tmp_path)
    assert [record.kind for record in run.decisions] == ["start", "swap"]
    assert run.lacks_decisions and not run.lacks_steps


def test_damage_that_is_not_right_before_a_gap_is_damage(tmp_path: Path) -> None:
    write_run(tmp_path, all_places())
    file = tmp_path / "ledger" / "steps-m-1.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0][:-20] + b"\n" + lines[1] + gap_line("No space left on device") + lines[2])
    with pytest.raises(LedgerError, match=r"steps-m-1\.jsonl line 1 is damaged"):
        read_run(tmp_path)


def test_an_empty_file_marks_a_ledger_in_which_nothing_more_could_be_written(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, [committed(0, 0), committed(0, 1)], incomplete=["m-1", "m-9", "decisions"]))
    assert run.shortfalls == (
        Shortfall(writer="decisions"),
        Shortfall(writer="m-1", ranks=frozenset({1})),
        Shortfall(writer="m-9"),
    )
    assert run.lacks_decisions and run.lacks_steps_of(0), "m-9 may have had any rank"


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    write_run(tmp_path, [committed(0, 0)])
    os.mkfifo(tmp_path / "ledger" / "steps-m-1.jsonl")
    assert set(read_run(tmp_path).steps) == {(0, 0)}


def test_the_beginning_of_a_run(tmp_path: Path) -> None:
    loaded = [committed(3, rank, inherited=True) for rank in range(2)]
    late = [committed(4, rank) for rank in range(2)]
    resumed = DecisionRecord(at=1.0, generation=1, kind="checkpoint", reason="", step=4)
    run = read_run(write_run(tmp_path / "resumed", [*loaded, *late], [resumed]))
    assert (run.began, run.from_checkpoint) == (4, True) and list(run.missing()) == []
    run = read_run(write_run(tmp_path / "silent", [*loaded, *late]))
    assert (run.began, run.from_checkpoint) == (4, False)
    run = read_run(write_run(tmp_path / "whole", [*all_places(), *late], [resumed]))
    assert (run.began, run.from_checkpoint) == (0, False), "a world that was founded again later"
    run = read_run(write_run(tmp_path / "short", late, incomplete=["m-0"]))
    assert run.began == 0 and len(list(run.missing())) == 8, "the first records may be the ones that are missing"


def test_places_without_a_record_are_listed(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, [committed(0, 0), committed(0, 1), committed(2, 0)]))
    assert list(run.missing()) == [(1, 0), (1, 1), (2, 1)]
