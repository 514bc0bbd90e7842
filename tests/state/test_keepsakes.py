"""What one rank alone knows outlives its process, and only whole and of the right step is it believed."""

from pathlib import Path

import pytest
from tests.disks import small_disk

from understudy.state.keepsakes import Keepsakes


def test_a_replacement_finds_what_was_kept(tmp_path: Path) -> None:
    Keepsakes(str(tmp_path), 1, 3).keep(7, b"streams")
    assert Keepsakes(str(tmp_path), 1, 3).find(7) == b"streams"


def test_two_steps_are_there_at_a_time(tmp_path: Path) -> None:
    keepsakes = Keepsakes(str(tmp_path), 1, 0)
    for step in range(6):
        keepsakes.keep(step, f"step {step}".encode())
    assert [keepsakes.find(step) for step in (3, 4, 5, 6)] == [None, b"step 4", b"step 5", None]


def test_what_is_written_last_counts(tmp_path: Path) -> None:
    keepsakes = Keepsakes(str(tmp_path), 1, 0)
    keepsakes.keep(4, b"a long keepsake from the fence")
    keepsakes.keep(4, b"short")
    assert keepsakes.find(4) == b"short"


def test_ranks_and_worlds_do_not_meet(tmp_path: Path) -> None:
    Keepsakes(str(tmp_path), 1, 0).keep(2, b"mine")
    assert Keepsakes(str(tmp_path), 1, 1).find(2) is None
    assert Keepsakes(str(tmp_path), 2, 0).find(2) is None


@pytest.mark.parametrize("cut", [3, 20, -2])
def test_a_torn_keepsake_is_none(tmp_path: Path, cut: int) -> None:
    keepsakes = Keepsakes(str(tmp_path), 1, 0)
    keepsakes.keep(2, b"half of it was written")
    (path,) = [path for path in tmp_path.iterdir() if path.stat().st_size]
    path.write_bytes(path.read_bytes()[:cut])
    assert keepsakes.find(2) is None


def test_damage_is_noticed(tmp_path: Path) -> None:
    keepsakes = Keepsakes(str(tmp_path), 1, 0)
    keepsakes.keep(2, b"something")
    (path,) = [path for path in tmp_path.iterdir() if path.stat().st_size]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert keepsakes.find(2) is None


def test_without_memory_it_says_so_and_raises_nothing(tmp_path: Path) -> None:
    keepsakes = Keepsakes(str(tmp_path / "gone"), 1, 0)
    assert keepsakes.keep(3, b"streams") == "No such file or directory"
    (tmp_path / "gone").mkdir()
    assert keepsakes.keep(3, b"streams") is None and keepsakes.find(3) == b"streams"


def test_what_was_cut_off_by_full_memory_is_not_believed(tmp_path: Path) -> None:
    with small_disk(tmp_path / "shared", "8k") as shared:
        keepsakes = Keepsakes(str(shared), 1, 0)
        assert keepsakes.keep(3, b"s" * 100) is None
        trouble = keepsakes.keep(5, b"s" * 100_000)
        assert trouble is not None and keepsakes.find(5) is None
