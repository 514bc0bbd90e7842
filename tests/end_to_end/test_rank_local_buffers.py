"""Batch-norm statistics and other buffers that every rank has for itself: a replacement on the same host has those of
its predecessor, and `verify` says so."""

from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import read_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]
SCRIPT = str(SCRIPTS / "rank_local_buffers.py")


@pytest.mark.parametrize(("victim", "flags"), [("0", ()), ("1", ("--no-broadcast",))], ids=["broadcast", "own"])
def test_a_replacement_goes_on_with_its_predecessors_buffers(
    tmp_path: Path, victim: str, flags: tuple[str, ...]
) -> None:
    runs = []
    for name, more in (("whole", ()), ("killed", ("--victim", victim))):
        folder = tmp_path / name
        spares = 2 if more else 0
        with understudy_run(folder, SCRIPT, str(folder), *flags, *more, spares=spares) as job:
            assert job.wait() == 0, job.output
        assert job.output.count("buffers that replicas do not share") == 1, job.output
        runs.append(read_run(job.run_dir))
    assert {path.name for path in folder.glob("killed-*")} == {"killed-4", "killed-7"}
    comparison = compare(*runs)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
    assert comparison.compared["buffers"] > 0
