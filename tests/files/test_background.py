"""Whoever writes in the background neither waits nor fails, whatever the disk does."""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from understudy.files import background, troubles
from understudy.files.append_file import AppendFile
from understudy.files.background import BackgroundFile, BackgroundFiles
from understudy.files.troubles import DiskTroubles


def gap(why: str, lost: int = 0) -> bytes:
    return f"<{lost} missing: {why}>\n".encode()


class SlowDisk:
    """Writes wait until the test lets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.entered = threading.Event()
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor: int, data: bytes) -> int:
        self.entered.set()
        assert self.go_on.wait(60.0)
        return self._write(descriptor, data)


def play(scene: Callable[[BackgroundFiles, list[str]], Awaitable[None]]) -> list[str]:
    """Returns what was said."""
    said: list[str] = []

    async def act() -> None:
        files = BackgroundFiles(said.append)
        await scene(files, said)
        await asyncio.sleep(0)  # what a thread said last

    asyncio.run(act())
    return said


async def until(true: Callable[[], object]) -> None:
    for _ in range(2000):
        if true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("waited 10 s")


def test_entries_are_written_in_order_and_soon(tmp_path: Path) -> None:
    async def scene(files: BackgroundFiles, _said: list[str]) -> None:
        file = files.open(tmp_path / "ledger" / "file", gap=gap)
        assert files.open(tmp_path / "ledger" / "file", gap=gap) is file
        began = time.monotonic()
        file.write(b"first\n")
        await until(lambda: not file.unwritten)
        assert time.monotonic() - began < 1.0 and (tmp_path / "ledger" / "file").read_bytes() == b"first\n"
        for number in range(3000):
            file.write(b"%d\n" % number)
        assert await files.drain(10.0) == []
        lines = (tmp_path / "ledger" / "file").read_bytes().splitlines()
        assert lines == [b"first", *(b"%d" % number for number in range(3000))]

    assert play(scene) == []


def test_a_file_to_which_nothing_is_written_is_not_made(tmp_path: Path) -> None:
    async def scene(files: BackgroundFiles, _said: list[str]) -> None:
        files.open(tmp_path / "file", gap=gap)
        assert await files.drain(10.0) == []

    play(scene)
    assert not (tmp_path / "file").exists()


def test_a_slow_write_holds_up_nobody_and_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    monkeypatch.setattr(troubles, "SLOW", 0.05)
    monkeypatch.setattr(troubles, "_LOOK_EVERY", 0.01)

    async def scene(files: BackgroundFiles, said: list[str]) -> None:
        file = files.open(tmp_path / "file", gap=gap, mark=tmp_path / "incomplete-file")
        for number in range(10):
            began = time.monotonic()
            file.write(b"%d\n" % number)
            assert time.monotonic() - began < 0.5
        await until(lambda: said)
        assert "the disk has not answered for" in said[0] and "Training goes on" in said[0]
        await until((tmp_path / "incomplete-file").exists)
        await asyncio.sleep(0.1)
        disk.go_on.set()
        assert await files.drain(10.0) == []
        await until(lambda: len(said) == 2)
        assert not (tmp_path / "incomplete-file").exists()
        assert (tmp_path / "file").read_bytes().count(b"\n") == 10

    said = play(scene)
    assert len(said) == 2 and said[1] == f"{tmp_path} can be written again; nothing is missing"


def test_what_does_not_fit_is_dropped_and_the_file_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)

    async def scene(files: BackgroundFiles, _said: list[str]) -> None:
        file = files.open(tmp_path / "file", gap=gap, mark=tmp_path / "incomplete-file", most=20)
        file.write(b"0 234567\n")
        await until(disk.entered.is_set)
        for number in range(1, 6):
            file.write(b"%d 234567\n" % number)  # nine bytes: one more fits
        assert file.unwritten == 2 + 4
        disk.go_on.set()
        await until(lambda: not file.unwritten)
        file.write(b"6 234567\n")
        assert await files.drain(10.0) == []
        lines = (tmp_path / "file").read_bytes().splitlines()
        why = b"the disk was slower than what was to be written"
        assert lines == [b"0 234567", b"1 234567", b"<4 missing: " + why + b">", b"6 234567"]
        await until((tmp_path / "incomplete-file").exists)

    play(scene)


def test_one_file_that_blocks_for_ever_holds_up_no_other(tmp_path: Path) -> None:
    async def scene(files: BackgroundFiles, _said: list[str]) -> None:
        os.mkfifo(tmp_path / "pipe")  # nobody reads it
        files.open(tmp_path / "pipe", gap=gap).write(b"never\n")
        other = files.open(tmp_path / "file", gap=gap)
        other.write(b"soon\n")
        await until(lambda: not other.unwritten)
        (missing,) = await files.drain(0.1)
        assert missing == f"{tmp_path / 'pipe'}: 1 entries (there was not enough time)"

    play(scene)


def test_trouble_is_said_once_for_all_files_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_RETRY", 0.01)

    async def scene(files: BackgroundFiles, said: list[str]) -> None:
        blocked = tmp_path / "ledger"
        blocked.write_bytes(b"")  # a file where the folder should be
        for name in "abc":
            files.open(blocked / name, gap=gap).write(b"one\n")
        await until(lambda: said)
        await asyncio.sleep(0.1)
        blocked.unlink()
        assert await files.drain(10.0) == []
        await until(lambda: len(said) > 1)

    first, last = play(scene)
    assert "cannot be written: Not a directory. Training goes on" in first
    assert last == f"{tmp_path / 'ledger'} can be written again; nothing is missing"


def test_a_disk_that_is_full_now_and_then_is_not_told_each_time_but_a_lasting_trouble_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    told = DiskTroubles(said.append)
    file = AppendFile(tmp_path / "file", gap=gap, listener=told)
    for _ in range(3):
        file.fail("full")
        file._succeed()
    assert len(said) == 2, "the first time, and that it was over"
    file.fail("full")
    told.look()
    assert len(said) == 2
    monkeypatch.setattr(troubles, "_SAY_AGAIN_AFTER", 0.0)
    told.look()
    told.look()
    assert len(said) == 3 and "cannot be written: full" in said[2]
    file.lossy = True
    file._succeed()
    assert said[3].endswith("some of it is missing, which is marked there")


def test_files_that_fail_again_and_again_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_LAST_ATTEMPTS", 0.05)

    async def scene(files: BackgroundFiles, _said: list[str]) -> None:
        (tmp_path / "file").symlink_to("/dev/full")
        files.open(tmp_path / "file", gap=gap).write(b"one\n")
        began = time.monotonic()
        (missing,) = await files.drain(60.0)
        assert missing.endswith("1 entries (No space left on device)") and time.monotonic() - began < 30.0
        monkeypatch.setattr(background, "_LAST_ATTEMPTS", 60.0)
        began = time.monotonic()
        assert await files.drain(60.0, enough=lambda: True) and time.monotonic() - began < 30.0

    play(scene)


def test_a_whole_file_at_once(tmp_path: Path) -> None:
    async def scene(files: BackgroundFiles, _said: list[str]) -> None:
        heard: list[str | None] = []
        files.write_once(tmp_path / "stacks" / "a.txt", "text", heard.append)
        await until(lambda: heard)
        (tmp_path / "in the way").write_bytes(b"")
        files.write_once(tmp_path / "in the way" / "b.txt", "text", heard.append)
        await until(lambda: len(heard) == 2)
        assert heard == [None, "File exists"] and (tmp_path / "stacks" / "a.txt").read_text() == "text"

    play(scene)


def test_without_a_loop_it_is_said_at_once(tmp_path: Path) -> None:
    said: list[str] = []
    files = BackgroundFiles(said.append)
    file = AppendFile(tmp_path / "file", gap=gap, listener=files.troubles)
    (tmp_path / "file").symlink_to("/dev/full")
    assert not file.append(b"x\n")
    assert len(said) == 1 and isinstance(files.open(tmp_path / "other", gap=gap), BackgroundFile)
