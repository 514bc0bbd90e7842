"""Bodies that compute on after an optimizer has stepped are exact after a loss at any place; and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import Run, read_run
from understudy.protocol.commands import DecisionKind

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
SCRIPT = str(SCRIPTS / "several_optimizers.py")


def run(folder: Path, body: str, *place: str) -> Run:
    folder.mkdir(exist_ok=True)
    with understudy_run(folder, SCRIPT, str(folder), body, *place) as job:
        assert job.wait() == 0, job.output
        assert "what they change is copied in every step" in job.output
    assert (folder / "struck").exists() == bool(place)
    return read_run(job.run_dir)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    known: dict[str, Run] = {}

    def find(body: str) -> Run:
        if body not in known:
            known[body] = run(tmp_path_factory.mktemp("reference"), body)
        return known[body]

    return find


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ("adversaries", "between"),
        ("adversaries", "second-backward"),
        ("adversaries", "second-optimizer"),
        ("closure", "closure"),
    ],
)
def test_a_loss_after_an_optimizer_has_stepped(
    tmp_path: Path, undisturbed: Callable[[str], Run], body: str, place: str
) -> None:
    struck = run(tmp_path, body, place)
    comparison = compare(undisturbed(body), struck)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
    assert [swap[0] for recovery in struck.recoveries for swap in recovery.swaps] == [1]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("accumulation", "Accumulate inside of one step"),
        ("own_group_first", "remove your own call of init_process_group"),
    ],
)
def test_what_cannot_be_protected_stops_the_job_at_once(tmp_path: Path, body: str, sentence: str) -> None:
    with understudy_run(tmp_path, SCRIPT, str(tmp_path), body) as job:
        assert job.wait() == 1
        assert sentence in job.output[job.output.index("the job failed") :]
    assert DecisionKind.START_OVER.value not in [decision.kind for decision in read_run(job.run_dir).decisions]
