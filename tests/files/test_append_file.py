"""One file on a disk that is full, read-only, replaced or gone."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from understudy.files.append_file import AppendFile


class Heard:
    """What a file tells of its trouble."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def began(self, _file: AppendFile, why: str) -> None:
        self.told.append(why)

    def ended(self, file: AppendFile) -> None:
        self.told.append("again, lossy" if file.lossy else "again")


def gap(why: str, _lost: int = 0) -> bytes:
    return f"<{why}>\n".encode()


class Disk:
    """A disk with so much room, and errors on demand, in the place of `os.write`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 1_000_000
        self.error = errno.ENOSPC
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor: int, data: bytes) -> int:
        if not self.room:
            raise OSError(self.error, os.strerror(self.error))
        taken = self._write(descriptor, bytes(data)[: self.room])
        self.room -= taken
        return taken


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def opened(path: Path, **options: object) -> tuple[AppendFile, Heard]:
    heard = Heard()
    return AppendFile(path, gap=gap, listener=heard, **options), heard  # type: ignore[arg-type]


def until(true: Callable[[], bool]) -> bool:
    """Marks are made in a thread."""
    for _ in range(500):
        if true():
            return True
        time.sleep(0.01)
    return False


def test_a_folder_that_is_not_there_is_made(tmp_path: Path) -> None:
    made: list[int] = []
    file, heard = opened(tmp_path / "a" / "b" / "file", remade=lambda: made.append(1))
    assert file.append(b"one\n") and file.append(b"two\n")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"one\ntwo\n"
    assert made == [1] and heard.told == []


def test_what_a_full_disk_took_of_a_chunk_is_not_written_twice(tmp_path: Path, disk: Disk) -> None:
    file, heard = opened(tmp_path / "file", mark=tmp_path / "incomplete-file")
    disk.room = 6
    assert not file.append(b"one\ntwo\n") and not file.append(b"one\ntwo\n")
    assert file.is_failing and file.trouble == "No space left on device"
    assert until((tmp_path / "incomplete-file").exists)
    disk.room = 1000
    assert file.append(b"one\ntwo\nthree\n"), "it may have become longer meanwhile"
    assert (tmp_path / "file").read_bytes() == b"one\ntwo\nthree\n"
    assert heard.told == ["No space left on device", "again"]
    assert not (tmp_path / "incomplete-file").exists(), "nothing is missing"


def test_a_mark_stays_when_something_is_lost(tmp_path: Path, disk: Disk) -> None:
    file, heard = opened(tmp_path / "file", mark=tmp_path / "incomplete-file")
    disk.room = 0
    assert not file.append(b"one\n")
    file.lose()
    disk.room = 1000
    assert file.append(b"one\n")
    assert heard.told == ["No space left on device", "again, lossy"]
    assert until((tmp_path / "incomplete-file").exists)


def test_a_mark_that_a_slow_disk_makes_too_late_is_taken_away_again(tmp_path: Path) -> None:
    file, _ = opened(tmp_path / "file", mark=tmp_path / "incomplete-file")
    assert file.append(b"one\n")
    file._set_mark()
    assert not (tmp_path / "incomplete-file").exists()


def test_a_file_that_is_removed_is_made_again_with_a_word(tmp_path: Path) -> None:
    made: list[int] = []
    file, heard = opened(tmp_path / "run" / "file", remade=lambda: made.append(1))
    file.append(b"one\n")
    (tmp_path / "run" / "file").unlink()
    (tmp_path / "run").rmdir()
    assert file.append(b"two\n")
    assert (tmp_path / "run" / "file").read_bytes() == b"<it was removed while it was written>\ntwo\n"
    assert made == [1, 1] and heard.told == ["it was removed while it was written", "again, lossy"]


def test_after_an_error_that_ends_the_descriptor_the_file_is_opened_again(tmp_path: Path, disk: Disk) -> None:
    file, _ = opened(tmp_path / "file")
    disk.room, disk.error = 6, errno.ESTALE
    assert not file.append(b"one\ntwo\n")
    disk.room = 1000
    assert file.append(b"one\ntwo\n")
    assert (tmp_path / "file").read_bytes() == b"one\ntwo\n" and not file.lossy


def test_a_line_that_cannot_be_mended_is_ended(tmp_path: Path, disk: Disk) -> None:
    """What comes back after the error is not what it was."""
    file, _ = opened(tmp_path / "file")
    disk.room, disk.error = 6, errno.ESTALE
    assert not file.append(b"one\ntwo\nthree\n")
    (tmp_path / "file").write_bytes(b"on")
    disk.room = 1000
    assert file.append(b"one\ntwo\nthree\n")
    content = (tmp_path / "file").read_bytes()
    assert content == b"on\n<the file was another one after an error>\nthree\n" and file.lossy


@pytest.mark.parametrize(("found", "expected"), [(b"", b"mine\n"), (b"whole\n", b"whole\nmine\n")])
def test_a_file_with_whole_lines_is_continued(tmp_path: Path, found: bytes, expected: bytes) -> None:
    (tmp_path / "file").write_bytes(found)
    file, _ = opened(tmp_path / "file", whole_lines=True)
    assert file.append(b"mine\n") and (tmp_path / "file").read_bytes() == expected


def test_a_line_that_a_former_writer_left_unfinished_is_ended(tmp_path: Path) -> None:
    """A coordinator died, and another one goes on in the same ledger."""
    (tmp_path / "file").write_bytes(b"whole\nunfin")
    file, _ = opened(tmp_path / "file", whole_lines=True)
    assert file.append(b"mine\n")
    assert (tmp_path / "file").read_bytes() == (
        b"whole\nunfin\n<its former writer ended in the middle of a line>\nmine\n"
    )
