"""What one rank alone knows outlives its process, and only whole and of the right step is it believed."""

from pathlib import Path

import pytest
from tests.disks import small_disk

from understudy.state.rank_local_files import RankLocalFiles


def test_a_replacement_finds_what_was_kept(tmp_path: Path) -> None:
    RankLocalFiles(str(tmp_path), 1, 3).keep(7, b"streams")
    assert RankLocalFiles(str(tmp_path), 1, 3).find(7) == b"streams"


def test_two_steps_are_there_at_a_time(tmp_path: Path) -> None:
    files = RankLocalFiles(str(tmp_path), 1, 0)
    for step in range(6):
        files.keep(step, f"step {step}".encode())
    assert [files.find(step) for step in (3, 4, 5, 6)] == [None, b"step 4", b"step 5", None]


def test_what_is_written_last_counts(tmp_path: Path) -> None:
    files = RankLocalFiles(str(tmp_path), 1, 0)
    files.keep(4, b"a long content from the fence")
    files.keep(4, b"short")
    assert files.find(4) == b"short"


def test_ranks_and_worlds_do_not_meet(tmp_path: Path) -> None:
    RankLocalFiles(str(tmp_path), 1, 0).keep(2, b"mine")
    assert RankLocalFiles(str(tmp_path), 1, 1).find(2) is None
    assert RankLocalFiles(str(tmp_path), 2, 0).find(2) is None


@pytest.mark.parametrize("cut", [3, 20, -2])
def test_a_torn_file_is_none(tmp_path: Path, cut: int) -> None:
    files = RankLocalFiles(str(tmp_path), 1, 0)
    files.keep(2, b"half of it was written")
    (path,) = [path for path in tmp_path.iterdir() if path.stat().st_size]
    path.write_bytes(path.read_bytes()[:cut])
    assert files.find(2) is None


def test_damage_is_noticed(tmp_path: Path) -> None:
    files = RankLocalFiles(str(tmp_path), 1, 0)
    files.keep(2, b"something")
    (path,) = [path for path in tmp_path.iterdir() if path.stat().st_size]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert files.find(2) is None


def test_without_memory_it_says_so_and_raises_nothing(tmp_path: Path) -> None:
    files = RankLocalFiles(str(tmp_path / "gone"), 1, 0)
    assert files.keep(3, b"streams") == "No such file or directory"
    (tmp_path / "gone").mkdir()
    assert files.keep(3, b"streams") is None and files.find(3) == b"streams"


def test_what_was_cut_off_by_full_memory_is_not_believed(tmp_path: Path) -> None:
    with small_disk(tmp_path / "shared", "8k") as shared:
        files = RankLocalFiles(str(shared), 1, 0)
        assert files.keep(3, b"s" * 100) is None
        trouble = files.keep(5, b"s" * 100_000)
        assert trouble is not None and files.find(5) is None
