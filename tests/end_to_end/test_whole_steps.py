"""A step that is one function, and reads its batches itself, runs again with the same batches."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import Run, read_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
RANKS, STEPS = 2, 14


def run(folder: Path, *kill: str) -> tuple[Run, list[Any]]:
    script = (str(SCRIPTS / "whole_steps.py"), str(folder), *(("--kill", *kill) if kill else ()))
    with understudy_run(folder, *script, ranks=RANKS, spares=int(bool(kill))) as job:
        assert job.wait(200) == 0, job.output
    assert len(list(folder.glob("killed-*"))) == len(kill), "a fault did not fire"
    return read_run(job.run_dir), [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(RANKS)]


def test_it_is_exact_wherever_a_rank_is_lost(tmp_path: Path) -> None:
    ledger, expected = run(tmp_path / "quiet")
    hurt_ledger, found = run(tmp_path / "hurt", "second:3:0", "optimizer:8:1")
    comparison = compare(ledger, hurt_ledger)
    assert comparison.first is None and comparison.verdict is ComparisonVerdict.WEAK, comparison.sentence()
    assert comparison.never_compared == ("batch",), "an iterator does not say what it yields"
    for rank in range(RANKS):
        assert found[rank]["weights"] == expected[rank]["weights"] and len(expected[rank]["losses"]) == STEPS
        known = {step: loss for step, loss in found[rank]["losses"].items() if loss is not None}
        assert all(expected[rank]["losses"][step] == loss for step, loss in known.items())
    assert [rank["seen"] for rank in found] == [rank["seen"] for rank in expected]
