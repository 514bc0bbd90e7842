"""Computing times in the progress page: what the worker writes is what the agent reads."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.disks import fill, small_disk

from understudy.detection.progress import KEPT_STEPS, NOTHING_COMPUTED, Place, ProgressReader, ProgressWriter


def test_a_new_page_has_computed_nothing(tmp_path: Path) -> None:
    with ProgressReader(str(tmp_path / "page")) as reader:
        writer = ProgressWriter(str(tmp_path / "page"))
        writer.show(1, 5, Place.IN_STEP)
        assert reader.look().compute == NOTHING_COMPUTED


def test_sums_and_the_last_steps(tmp_path: Path) -> None:
    with ProgressReader(str(tmp_path / "page")) as reader:
        writer = ProgressWriter(str(tmp_path / "page"))
        for step in range(10, 10 + KEPT_STEPS + 5):
            writer.show_compute(step, 0.25)
        writer.show(1, 80, Place.IN_STEP)
        page = reader.look()
        assert (page.step, page.place) == (80, Place.IN_STEP)
        assert (page.compute.seconds, page.compute.steps) == (0.25 * (KEPT_STEPS + 5), KEPT_STEPS + 5)
        assert list(page.compute.recent) == list(range(15, 15 + KEPT_STEPS))


def test_a_member_that_began_late_shows_only_its_own_steps_and_a_repeated_one_once(tmp_path: Path) -> None:
    with ProgressReader(str(tmp_path / "page")) as reader:
        writer = ProgressWriter(str(tmp_path / "page"))
        for step, seconds in ((500, 0.1), (501, 0.2), (501, 0.3), (502, 0.4)):
            writer.show_compute(step, seconds)
        compute = reader.look().compute
        assert compute.recent == {500: 0.1, 501: 0.3, 502: 0.4}
        assert (compute.steps, compute.last_step) == (4, 502)


def test_a_page_has_its_memory_from_the_beginning(tmp_path: Path) -> None:
    """Else a worker would be ended by SIGBUS at its next step when shared memory is full."""
    with small_disk(tmp_path / "shared", "16k") as shared, ProgressReader(str(shared / "page")) as reader:
        fill(shared / "other")
        code = (
            "import sys; from understudy.detection.progress import Place, ProgressWriter\n"
            "ProgressWriter(sys.argv[1]).show(1, 7, Place.IN_STEP)"
        )
        ended = subprocess.run([sys.executable, "-c", code, str(shared / "page")], check=False, timeout=60)
        assert ended.returncode == 0 and reader.look().step == 7
        with pytest.raises(OSError, match="No space left"):
            ProgressReader(str(shared / "another"))
        assert not (shared / "another").exists()
