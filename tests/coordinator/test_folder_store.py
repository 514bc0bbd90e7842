"""What only the store in a folder can be put through: sleepers, damage, a folder that is away, and its growth."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from understudy.coordinator.folder import FolderLog, FolderStateStore, FolderStores, folder_of
from understudy.coordinator.stores import StoreRequest
from understudy.errors import Deposed, LedgerError, SettingsError
from understudy.foundation.clock import SystemClock


class FrozenClock(SystemClock):
    """A leader whose own clock stands still does not notice that it was silent: only the log can refuse it."""

    frozen: float | None = None

    def now(self) -> float:
        return super().now() if self.frozen is None else self.frozen


def play(*state_stores: FolderStateStore, story: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        try:
            async with asyncio.timeout(40.0):
                await story()
        finally:
            for state_store in state_stores:
                await state_store.close()

    asyncio.run(whole())


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "log").iterdir())


@pytest.mark.parametrize("address", ["folder://", "folder:///", "folder://shared/x", "folder:shared", "folder"])
def test_an_address_that_cannot_be_right_is_explained(address: str) -> None:
    with pytest.raises(SettingsError, match="absolute path"):
        FolderStores().open(StoreRequest(address=address, job="job"))


def test_a_job_cannot_leave_the_folder(tmp_path: Path) -> None:
    FolderStores().open(StoreRequest(address=f"folder://{tmp_path}", job="../../x"))
    assert folder_of(f"folder://{tmp_path}") == tmp_path

    async def story() -> None:
        opened = FolderStores().open(StoreRequest(address=f"folder://{tmp_path}", job="../../x"))
        await opened.lead("one:1")
        await opened.close()

    asyncio.run(story())
    assert [path.name for path in tmp_path.iterdir()] == ["job-..%2F..%2Fx"]


def test_even_a_leader_whose_clock_is_wrong_is_refused(tmp_path: Path) -> None:
    clock = FrozenClock()
    first, second = FolderStateStore(tmp_path, clock=clock), FolderStateStore(tmp_path)

    async def story() -> None:
        await first.lead("one:1")
        await first.record(b"of the first")
        clock.frozen = clock.now()
        assert first._renewing is not None
        first._renewing.cancel()  # it is silent, and does not look
        began = time.monotonic()
        await second.lead("two:2")
        assert time.monotonic() - began > 3.0
        assert first.leads(), "it believes so"
        with pytest.raises(Deposed, match=r"two:2's, of term 3"):
            await first.record(b"too late")
        assert not first.leads() and await second.read() == b"of the first"

    play(first, second, story=story)


def test_a_leader_whose_folder_is_away_stops_leading_by_its_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    first = FolderStateStore(tmp_path, say=said.append)

    async def story() -> None:
        await first.lead("one:1")
        with monkeypatch.context() as broken:

            def fail(*_: object, **__: object) -> None:
                raise OSError(116, "Stale file handle")

            broken.setattr(os, "open", fail)
            with pytest.raises(Deposed, match="could not be written for 3 s"):
                await first.record(b"never")
        assert not first.leads() and len(said) == 1 and "Stale file handle" in said[0]
        assert await first.lead("one:1") > 1
        await first.record(b"facts")
        assert await first.read() == b"facts"

    play(first, story=story)


def test_a_log_stays_short(tmp_path: Path) -> None:
    """Facts take the place of all before them; elections without facts leave them alone."""

    async def story() -> None:
        first = FolderStateStore(tmp_path)
        await first.lead("one:1")
        for number in range(30):
            await first.record(b"%d" % number)
        assert len(entries(tmp_path)) <= 6
        await first.close()
        for _ in range(10):
            later = FolderStateStore(tmp_path)
            await later.lead("two:2")
            await later.close()
        assert len(entries(tmp_path)) <= 7
        assert await first.read() == b"29"
        assert len(list((tmp_path / "heartbeats").iterdir())) <= 2

    asyncio.run(story())


@pytest.mark.parametrize("damage", ["torn", "bytes", "gone"])
def test_facts_that_are_damaged_are_said_to_be(tmp_path: Path, damage: str) -> None:
    first, second = FolderStateStore(tmp_path), FolderStateStore(tmp_path)

    async def story() -> None:
        await first.lead("one:1")
        await first.record(bytes(1000))
        await first.close()
        path = entries(tmp_path)[1]
        whole = path.read_bytes()
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(whole[:500] if damage == "torn" else whole[:500] + b"x" + whole[501:])
        with pytest.raises(LedgerError, match="the facts"):
            await second.read()
        await second.lead("two:2")
        with pytest.raises(LedgerError, match="the facts"):
            await second.read()
        await second.record(b"new ones")
        assert await second.read() == b"new ones"

    play(first, second, story=story)


def test_a_damaged_head_can_be_succeeded(tmp_path: Path) -> None:
    first, second = FolderStateStore(tmp_path), FolderStateStore(tmp_path)

    async def story() -> None:
        await first.lead("one:1")
        await first.record(b"facts")
        entries(tmp_path)[-1].write_bytes(b"\xc1")
        assert FolderLog(tmp_path).head().damaged
        with pytest.raises(LedgerError, match="cannot be read"):
            await second.read()
        term = await second.lead("two:2")
        assert term == 3
        with pytest.raises(LedgerError, match="cannot be read"):
            await second.read()
        with pytest.raises(Deposed):
            await first.record(b"late")

    play(first, second, story=story)
