"""State stores of one process: one leads, the others wait, and a deposed one may not write."""

import asyncio

import pytest

from understudy.coordinator.state_store import MemoryStateStore, SharedMemoryState
from understudy.errors import Deposed


def test_one_leads_and_the_next_one_goes_on_from_what_was_kept() -> None:
    async def scene() -> None:
        shared = SharedMemoryState()
        first, second = MemoryStateStore(shared), MemoryStateStore(shared)
        assert await first.read() is None and await first.leader() == ""
        assert await first.lead("one:1") == 1
        waiting = asyncio.ensure_future(second.lead("two:2"))
        await first.record(b"facts")
        assert not waiting.done() and await second.leader() == "one:1"
        await first.close()
        assert await waiting == 2 and await second.read() == b"facts"
        assert await second.leader() == "two:2"

    asyncio.run(scene())


def test_a_deposed_keeper_is_told_and_may_not_write() -> None:
    async def scene() -> None:
        shared = SharedMemoryState()
        old, new = MemoryStateStore(shared), MemoryStateStore(shared)
        await old.lead("old:1")
        told = asyncio.ensure_future(old.deposed())
        await asyncio.sleep(0)
        assert not told.done()
        old.depose()
        await new.lead("new:2")
        assert "term 1 is over" in await told
        await new.record(b"new")
        with pytest.raises(Deposed):
            await old.record(b"old")
        await old.close()  # must not take the lead away from the new one
        assert await new.leader() == "new:2" and await new.read() == b"new"

    asyncio.run(scene())


def test_who_never_led_may_not_write() -> None:
    async def scene() -> None:
        with pytest.raises(Deposed):
            await MemoryStateStore().record(b"facts")

    asyncio.run(scene())
