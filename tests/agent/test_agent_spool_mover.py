"""Step records come from shared memory to the run's folder, whatever its disk does, and nobody waits for it."""

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.ledger.made_up import committed, info

from understudy.agent.spool_mover import SpoolMover
from understudy.files.troubles import DiskTroubles
from understudy.foundation.ids import MemberId
from understudy.ledger.reading import read_run
from understudy.ledger.spool import SpoolWriter
from understudy.ledger.writing import restore_run_info, write_run_info


class Host:
    """Two members that write, and the mover."""

    def __init__(self, folder: Path) -> None:
        self.shared, self.run = folder / "shared", folder / "run"
        self.shared.mkdir()
        write_run_info(self.run, info())
        self.said: list[str] = []
        self.mover = SpoolMover(
            self.shared, self.run / "ledger", DiskTroubles(self.said.append), lambda: restore_run_info(self.run, info())
        )
        self.writers = [SpoolWriter(str(self.shared), f"m-{number}", self.said.append) for number in range(2)]
        for number in range(2):
            self.mover.expect(MemberId(f"m-{number}"))

    def commit(self, *steps: int) -> None:
        for step in steps:
            for rank, writer in enumerate(self.writers):
                writer.append(committed(step, rank))

    def on_disk(self) -> set[tuple[int, int]]:
        return set(read_run(self.run).steps)


async def until(true: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def play(folder: Path, scene: Callable[[Host], Awaitable[None]]) -> Host:
    async def act() -> Host:
        host = Host(folder)
        await scene(host)
        return host

    return asyncio.run(act())


def test_records_are_moved_while_training_goes_on_and_all_of_them_at_the_end(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        host.commit(0, 1)
        await until(lambda: len(host.on_disk()) == 4)
        host.commit(2)
        assert await host.mover.drain(10.0) == []
        assert len(host.on_disk()) == 6

    host = play(tmp_path, scene)
    assert list(host.shared.iterdir()) == [] and host.said == [] and not list(host.run.glob("ledger/incomplete-*"))


def test_the_records_of_a_dead_worker_are_moved_at_once(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        host.commit(0)
        host.mover.ended(MemberId("m-0"))
        await until(lambda: not list(host.shared.glob("steps-m-0-*")))
        host.commit(1)
        assert await host.mover.drain(10.0) == []

    host = play(tmp_path, scene)
    assert host.on_disk() == {(0, 0), (0, 1), (1, 1)}, "who writes under a dead name is not listened to"


def test_a_disk_that_takes_nothing_keeps_them_in_memory_until_it_does(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        shutil.move(host.run / "ledger", host.run / "elsewhere")
        (host.run / "ledger").write_bytes(b"")  # nothing can be made in there
        host.commit(0, 1)
        await until(lambda: host.said)
        (host.run / "ledger").unlink()
        shutil.move(host.run / "elsewhere", host.run / "ledger")
        assert await host.mover.drain(20.0) == []

    host = play(tmp_path, scene)
    assert len(host.on_disk()) == 4 and not read_run(host.run).shortfalls
    assert len(host.said) == 2 and "nothing is missing" in host.said[1]


def test_a_disk_that_never_takes_them_is_given_up_and_the_ledger_is_marked(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        (host.run / "ledger" / "steps-m-0.jsonl").symlink_to("/dev/full")
        host.commit(0, 1)
        (missing,) = await host.mover.drain(30.0)
        assert "steps-m-0.jsonl (No space left on device)" in missing
        (host.run / "ledger" / "steps-m-0.jsonl").unlink()

    host = play(tmp_path, scene)
    assert host.on_disk() == {(0, 1), (1, 1)}
    assert [shortfall.writer for shortfall in read_run(host.run).shortfalls] == ["m-0"] and len(host.said) == 1


def test_a_disk_that_blocks_for_ever_holds_up_neither_the_loop_nor_the_end(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        os.mkfifo(host.run / "ledger" / "steps-m-0.jsonl")  # nobody reads it: to open it blocks
        began = time.monotonic()
        host.commit(*range(100))
        missing = await host.mover.drain(1.0)
        assert time.monotonic() - began < 10.0
        assert any("steps-m-0.jsonl" in text for text in missing)

    host = play(tmp_path, scene)
    assert read_run(host.run).lacks_steps_of(0)


def test_a_folder_that_is_removed_is_made_again_and_says_so(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        host.commit(0, 1)
        await until(lambda: len(host.on_disk()) == 4)
        shutil.rmtree(host.run)
        host.commit(2, 3)
        assert await host.mover.drain(10.0) == []

    host = play(tmp_path, scene)
    run = read_run(host.run)
    assert set(run.steps) == {(2, 0), (2, 1), (3, 0), (3, 1)}
    assert [(shortfall.writer, shortfall.why) for shortfall in run.shortfalls] == [
        ("m-0", "it was removed while it was written"),
        ("m-1", "it was removed while it was written"),
        ("run", ""),
    ]
    assert list(run.missing()) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_worker_without_memory_for_its_records_marks_the_ledger(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        host.commit(0)
        (host.shared / "steps-m-1-incomplete").touch()  # as its writer does
        assert await host.mover.drain(10.0) == []
        await until((host.run / "ledger" / "incomplete-m-1").exists)

    host = play(tmp_path, scene)
    assert read_run(host.run).lacks_steps_of(1) and not read_run(host.run).lacks_steps_of(0)
