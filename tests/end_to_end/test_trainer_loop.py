"""A loop that is not ours: weights, metrics and history are exact wherever a rank is lost, and no frame is unwound."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import Run, read_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
SCRIPT = str(SCRIPTS / "trainer_loop.py")
RANKS = 2


def run(folder: Path, *kill: str) -> tuple[Run, list[Any]]:
    script = (SCRIPT, str(folder), *(("--kill", *kill) if kill else ()))
    with understudy_run(folder, *script, ranks=RANKS, spares=int(bool(kill))) as job:
        assert job.wait(240) == 0, job.output
    assert len(list(folder.glob("killed-*"))) == len(kill), "a fault did not fire"
    return read_run(job.run_dir), [json.loads((folder / f"history-{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[Any]]:
    return run(tmp_path_factory.mktemp("quiet"))


@pytest.mark.parametrize(
    "kill",
    [
        ("forward:4:0", "backward:9:1", "clip:13:0"),
        ("optimizer:5:1", "after:8:0", "log:12:1"),
        ("evaluate:6:0", "epoch:2:1"),
        ("evaluate:9:1", "log:10:0", "epoch:4:0"),
        ("after:9:0", "log:10:0", "optimizer:11:1", "evaluate:12:1"),  # the replacement is lost behind the same step
    ],
    ids=" ".join,
)
def test_it_is_exact_wherever_a_rank_is_lost(
    tmp_path: Path, expected: tuple[Run, list[Any]], kill: tuple[str, ...]
) -> None:
    ledger, histories = run(tmp_path, *kill)
    comparison = compare(expected[0], ledger)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
    swaps = [swap[0] for recovery in ledger.recoveries for swap in recovery.swaps]
    assert swaps == [int(fault.split(":")[2]) for fault in kill]
    assert histories == expected[1]
