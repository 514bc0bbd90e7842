from pathlib import Path

import pytest
from tests.ledger.made_up import all_places, swap_decisions, write_run

from understudy.ledger.narrative import Narrative, Summary, size, tell
from understudy.ledger.reading import read_run
from understudy.ledger.records import DecisionRecord, RecoveryRecord

LOST = "rank 0 (member m-0) was lost: exit code 3"


def narrative(tmp_path: Path, decisions: list[DecisionRecord | RecoveryRecord]) -> Narrative:
    return tell(read_run(write_run(tmp_path, all_places(), decisions)))


def test_a_recovery_is_told_from_the_loss_to_the_next_step(tmp_path: Path) -> None:
    (block,) = narrative(tmp_path, swap_decisions()).recoveries
    assert block.title == "recovery 1, +2.000 s"
    assert block.lines == (
        ("why", "rank 1 (member m-1) was lost: killed by signal 9"),
        ("verdict", "retry: rank 0 had not arrived at the fence of step 2, so no rank passed it"),
        ("took over", "rank 1: m-2 in place of m-1"),
        (
            "phases",
            "detect 1.0 ms, stop 20.0 ms, rehearse 100.0 ms, regroup 30.0 ms, transfer 80.0 ms, resume 19.0 ms, "
            "in all 250.0 ms",
        ),
        ("received", "rank 1: 12.3 MB from rank 0; read from memory, 246.9 MB/s, 9 digests compared"),
        ("went on", "at step 2, in generation 2"),
    )


def test_the_rest_follows_in_sections(tmp_path: Path) -> None:
    sections = narrative(tmp_path, swap_decisions()).sections
    assert [section.title for section in sections] == ["refills", "refusals", "end"]
    assert sections[0].lines == (("+3.250 s", "refill m-3: the pool is below its size"),)
    assert sections[2].lines[-1] == ("+5.500 s", "stop: every rank ended its script")


def test_the_summary_counts(tmp_path: Path) -> None:
    summary = narrative(tmp_path, swap_decisions()).summary
    assert summary == Summary(steps=3, recoveries=1, median_recovery=0.25, downtime=0.25, start_overs=0)
    assert summary.sentence() == (
        "3 steps committed by every rank, 1 recovery, median recovery 250.0 ms, total downtime 250.0 ms, 0 start overs"
    )


def test_a_total_that_was_measured_counts_from_the_first_sign_of_the_loss(tmp_path: Path) -> None:
    record = RecoveryRecord(
        at=2.0,
        opened_at=1.0,
        first_generation=2,
        generation=2,
        step=1,
        reasons=("stall",),
        verdict="retry: nobody passed the fence",
        swaps=(),
        phases={"detect": 0.5, "total": 1.5},
    )
    told = narrative(tmp_path, [record])
    assert ("phases", "detect 500.0 ms, in all 1500.0 ms") in told.recoveries[0].lines
    assert told.summary.downtime == 1.5


def test_a_quiet_run_has_no_recovery_times(tmp_path: Path) -> None:
    told = narrative(tmp_path, [DecisionRecord(at=1.0, generation=1, kind="start", reason="the job begins")])
    assert told.recoveries == () and told.sections == ()
    assert told.summary.sentence() == "3 steps committed by every rank, 0 recoveries, 0 start overs"


def test_a_run_without_any_decision_can_be_told(tmp_path: Path) -> None:
    assert narrative(tmp_path, []).summary.recoveries == 0


def test_a_recovery_that_was_opened_again_says_so(tmp_path: Path) -> None:
    record = RecoveryRecord(
        at=12.0,
        opened_at=10.0,
        first_generation=2,
        generation=4,
        step=7,
        reasons=("rank 1 (member m-1) was lost", "rank 0 (member m-0) was lost"),
        verdict="commit",
        swaps=((0, "m-0", "m-3"), (1, None, "m-2")),
        phases={"stop": 0.5},
    )
    (block,) = narrative(tmp_path, [DecisionRecord(at=9.0, generation=1, kind="start", reason="-"), record]).recoveries
    assert block.title == "recovery 1, +1.000 s, opened 3 times"
    assert [text for label, text in block.lines if label == "why"] == list(record.reasons)
    assert ("verdict", "commit") in block.lines, "no decision tells more"
    assert [text for label, text in block.lines if label == "took over"] == [
        "rank 0: m-3 in place of m-0",
        "rank 1: m-2",
    ]


def test_an_alarm_without_a_swap_says_that_everybody_stayed(tmp_path: Path) -> None:
    record = RecoveryRecord(
        at=2.0, opened_at=1.0, first_generation=2, generation=2, step=1, reasons=("stall",), verdict="retry",
        swaps=(), phases={},
    )  # fmt: skip
    (block,) = narrative(tmp_path, [record]).recoveries
    assert ("took over", "no member: every rank kept its member") in block.lines


def test_a_recovery_by_another_rung_says_which_and_why(tmp_path: Path) -> None:
    record = RecoveryRecord(
        at=2.0, opened_at=1.0, first_generation=2, generation=3, step=1, reasons=(LOST,), verdict="retry", swaps=(),
        phases={},
    )  # fmt: skip
    reason = "degrade: no swap: the job was started with --spares 0"
    decisions = [
        DecisionRecord(at=1.0, generation=3, kind="degrade", reason=reason),
        DecisionRecord(at=9.0, generation=4, kind="degrade", reason="degrade: in another recovery"),
    ]
    (block,) = narrative(tmp_path, [*decisions, record]).recoveries
    assert [line for line in block.lines if line[0] == "rung"] == [("rung", reason)]
    assert ("took over", "no member: the world goes on with fewer ranks") in block.lines


def test_a_recovery_in_which_the_job_stopped_is_shown(tmp_path: Path) -> None:
    decisions: list[DecisionRecord | RecoveryRecord] = [
        *swap_decisions()[:5],
        DecisionRecord(at=110.0, generation=3, kind="swap", reason=LOST, rank=0, member="m-0"),
        DecisionRecord(at=110.5, generation=3, kind="stop", reason=f"{LOST}; no swap: it has no twin"),
    ]
    told = narrative(tmp_path, decisions)
    assert told.recoveries[-1].title == "recovery without an end, +10.000 s"
    assert told.recoveries[-1].lines[0] == ("why", LOST)
    assert told.sections[-1].lines == (("+10.500 s", f"stop: {LOST}; no swap: it has no twin"),)


def test_a_loss_that_made_the_world_start_over_is_no_open_recovery(tmp_path: Path) -> None:
    decisions: list[DecisionRecord | RecoveryRecord] = [
        DecisionRecord(at=1.0, generation=1, kind="start", reason="the job begins"),
        DecisionRecord(at=2.0, generation=2, kind="swap", reason=LOST, rank=0, member="m-0"),
        DecisionRecord(at=2.1, generation=3, kind="start over", reason=f"{LOST}; nothing is lost by beginning again"),
    ]
    told = narrative(tmp_path, decisions)
    assert told.recoveries == ()
    assert told.sections[0].title == "start overs" and told.summary.start_overs == 1


def test_torn_lines_are_mentioned(tmp_path: Path) -> None:
    write_run(tmp_path, all_places())
    file = tmp_path / "ledger" / "steps-m-1.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    told = tell(read_run(tmp_path))
    assert told.heading.lines[-1] == ("torn", "last line cut off by the death of its writer: steps-m-1.jsonl")
    assert told.summary.steps == 2, "a step counts once every rank has it"


@pytest.mark.parametrize(("count", "text"), [(0, "0 bytes"), (20_000, "20.0 kB"), (12_300_000, "12.3 MB")])
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_which_device_a_rank_has_is_a_section_of_its_own(tmp_path: Path) -> None:
    reason = "rank 1 on device 2 of this host, before on device 1 of this host; sums may differ in the last bit"
    told = narrative(tmp_path, [DecisionRecord(at=9.0, generation=2, kind="device", reason=reason)])
    (section,) = [block for block in told.sections if block.title == "devices"]
    assert [text for _, text in section.lines] == [f"device: {reason}"]
