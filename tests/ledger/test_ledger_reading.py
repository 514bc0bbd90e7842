from pathlib import Path

import pytest
from tests.ledger.made_up import all_places, bare, committed, info, swap_decisions, write_run

from understudy.errors import LedgerError
from understudy.ledger.reading import read_run


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
def test_a_step_committed_twice_by_one_member_names_both_lines(tmp_path: Path, generation: int) -> None:
    write_run(tmp_path, [committed(0, 0), committed(1, 0), committed(0, 0, generation=generation)])
    with pytest.raises(LedgerError, match="committed twice by the same member") as caught:
        read_run(tmp_path)
    assert "step 0 of rank 0" in str(caught.value)
    assert "steps-m-0.jsonl line 1" in str(caught.value) and "steps-m-0.jsonl line 3" in str(caught.value)


@pytest.mark.parametrize("field", ["batch", "parameters", "optimizer", "rng"])
def test_records_that_contradict_each_other_name_both(tmp_path: Path, field: str) -> None:
    other = committed(2, 1, member="m-2", generation=2, inherited=True, **{field: "other"})
    write_run(tmp_path, [*all_places(), other])
    with pytest.raises(LedgerError, match=f"step 2 of rank 1 has two different values of {field}") as caught:
        read_run(tmp_path)
    assert "committed by m-1 in generation 1" in str(caught.value)
    assert "inherited by m-2 in generation 2" in str(caught.value)


def test_places_without_a_record_are_listed(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, [committed(0, 0), committed(0, 1), committed(2, 0)]))
    assert list(run.missing()) == [(1, 0), (1, 1), (2, 1)]
