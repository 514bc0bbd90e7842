"""A log of numbered files: one writer wins each number, and a writer that slept through a compaction is told."""

import os
import stat
import threading
from pathlib import Path

import pytest

from understudy.files.numbered import NumberedFiles, make_once


def test_each_number_is_made_once(tmp_path: Path) -> None:
    log, other = NumberedFiles(tmp_path / "log"), NumberedFiles(tmp_path / "log")
    assert log.newest() == 0 and log.read(1) is None
    assert log.append(1, b"one")
    assert not other.append(1, b"another")
    assert other.append(2, b"two") and log.newest() == 2
    assert log.read(1) == b"one" and log.read(2) == b"two"
    assert sorted(os.listdir(tmp_path / "log")) == [f"{1:020d}", f"{2:020d}"], "nothing unfinished is left"


def test_the_same_attempt_again_has_succeeded(tmp_path: Path) -> None:
    """A network file system may lose the answer to a link that it has made."""
    log = NumberedFiles(tmp_path)
    assert log.append(1, b"one") and log.append(1, b"one")


def test_files_and_folders_are_private(tmp_path: Path) -> None:
    NumberedFiles(tmp_path / "a" / "log").append(1, b"one")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in sorted((tmp_path / "a").rglob("*"))]
    assert modes == [0o700, 0o600]


def test_a_writer_that_slept_through_a_compaction_is_told(tmp_path: Path) -> None:
    log = NumberedFiles(tmp_path)
    for number in range(1, 8):
        assert log.append(number, b"%d" % number)
    log.keep_only({3}, 6)
    assert sorted(map(int, os.listdir(tmp_path))) == [3, 6, 7]
    assert not log.append(2, b"of a sleeper"), "its number was free again"
    assert log.newest() == 7
    log.keep_only({3}, 6)
    assert log.read(2) is None, "what it left is removed like all old files"


def test_one_of_many_wins_each_number(tmp_path: Path) -> None:
    won: list[tuple[int, int]] = []

    def write(writer: int) -> None:
        log = NumberedFiles(tmp_path)
        for _ in range(40):
            number = log.newest() + 1
            if log.append(number, b"%d/%d" % (writer, number)):
                won.append((number, writer))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log, numbers = NumberedFiles(tmp_path), [number for number, _ in won]
    assert len(set(numbers)) == len(numbers) > 0
    assert all(log.read(number) == b"%d/%d" % (writer, number) for number, writer in won)


def test_what_dead_writers_left_is_removed_after_a_while(tmp_path: Path) -> None:
    log = NumberedFiles(tmp_path)
    log.append(1, b"one")
    for name, age in (("unfinished-old", 4000), ("unfinished-new", 10)):
        (tmp_path / name).write_bytes(b"")
        moment = (tmp_path / name).stat().st_mtime - age
        os.utime(tmp_path / name, (moment, moment))
    log.keep_only({1}, 1)
    assert sorted(os.listdir(tmp_path)) == [f"{1:020d}", "unfinished-new"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        make_once(tmp_path / "token", b"secret")
    assert os.listdir(tmp_path) == []
