"""Scripts that were not written for us: what they do in setup and in their loop survives a swap, bit for bit."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import Run, read_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]
SCRIPT = str(SCRIPTS / "as_users_write.py")
OWN_FUNCTIONS = str(SCRIPTS / "own_functions.py")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """The run without a fault; one per set of flags."""
    known: dict[tuple[str, ...], Run] = {}

    def find(*flags: str) -> Run:
        if flags not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            with understudy_run(folder, SCRIPT, str(folder), *flags, ranks=4, spares=0) as job:
                assert job.wait() == 0, job.output
            assert "step 3 scale 2048 " in job.output
            assert "step 4 scale 1024 " in job.output, "the step that is skipped halves it"
            known[flags] = read_run(job.run_dir)
        return known[flags]

    return find


@pytest.mark.parametrize(
    ("step", "place", "flags"),
    [
        (5, "forward", ()),
        (4, "reduction", ()),  # in the step whose gradients are infinite
        (6, "between-optimizers", ()),
        (6, "reduction", ("--tracked",)),
        (7, "between-optimizers", ("--tracked",)),
        (6, "reduction", ("--loader",)),  # epochs have five batches
        (4, "between-optimizers", ("--loader", "--tracked")),
    ],
)
def test_everything_that_a_script_does_survives_a_swap(
    tmp_path: Path, undisturbed: Callable[..., Run], step: int, place: str, flags: tuple[str, ...]
) -> None:
    if "--loader" in flags:
        pytest.importorskip("torchdata", reason="the loader is torchdata's")
    expected = undisturbed(*flags)
    script = (SCRIPT, str(tmp_path), "--kill-at", str(step), "--in", place, *flags)
    with understudy_run(tmp_path, *script, ranks=4) as job:
        assert job.wait() == 0, job.output
    assert (tmp_path / "killed").exists()
    run = read_run(job.run_dir)
    comparison = compare(expected, run)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
    assert [swap[0] for recovery in run.recoveries for swap in recovery.swaps] == [3]


def test_a_script_that_names_only_its_own_functions(tmp_path: Path) -> None:
    expected, result = tmp_path / "expected", tmp_path / "result"
    with understudy_run(tmp_path / "quiet", OWN_FUNCTIONS, str(expected), "--functions-only", spares=0) as job:
        assert job.wait() == 0, job.output
    with understudy_run(tmp_path / "swap", OWN_FUNCTIONS, str(result), "--functions-only", "--kill-at", "5") as job:
        assert job.wait() == 0, job.output
        assert result.with_suffix(".killed").exists()
        assert "recovered in" in job.output
        assert "have state that a replacement would not get" not in job.output
    assert result.read_text() == expected.read_text()


def test_a_script_that_works_on_after_its_last_step_is_not_called_hanging(tmp_path: Path) -> None:
    script = (OWN_FUNCTIONS, str(tmp_path / "result"), "--tail", "5")
    with understudy_run(tmp_path, *script, flags=("--step-timeout-min", "2")) as job:
        assert job.wait() == 0, job.output
        assert "no progress:" not in job.output
    assert (tmp_path / "result").exists() and not (tmp_path / "run" / "stacks").exists()
