"""What a state store promises when a leadership ends from outside, on memory, in a folder and on a real etcd; and what
only etcd can be put through. The rest of what state stores promise is in the suite of stores, which tests/plugins runs
on all of them.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from understudy.coordinator.etcd import EtcdStateStore
from understudy.coordinator.etcd_client import make_client
from understudy.coordinator.folder import Entry, FolderLog, FolderStores, folder_of, folder_of_job
from understudy.coordinator.state_store import MemoryStateStore, SharedMemoryState, StateStore
from understudy.coordinator.stores import EtcdStores, StoreRequest
from understudy.errors import Deposed, LedgerError, SettingsError
from understudy.foundation.clock import SystemClock
from understudy.foundation.parenthood import die_with
from understudy_testkit.faults import etcd_servers
from understudy_testkit.faults.etcd_servers import Servers, running

_LIMIT = 40.0
needs_etcd = pytest.mark.skipif(etcd_servers.why_not() is not None, reason=str(etcd_servers.why_not()))


@dataclass
class Store:
    """One job's store: state_stores of it, and the end of a leadership from outside."""

    address: str  # as for `--store`
    job: str = field(default_factory=lambda: secrets.token_hex(4))
    shared: SharedMemoryState = field(default_factory=SharedMemoryState)
    made: list[StateStore] = field(default_factory=list)

    def state_store(self) -> StateStore:
        state_store: StateStore
        if self.address == "memory":
            state_store = MemoryStateStore(self.shared)
        else:
            provider = FolderStores() if self.address.startswith("folder:") else EtcdStores()
            state_store = provider.open(StoreRequest(address=self.address, job=self.job))
        self.made.append(state_store)
        return state_store

    def log(self) -> FolderLog:
        return FolderLog(folder_of_job(folder_of(self.address), self.job))

    async def expire(self) -> None:
        """The present leader's leadership ends, though it lives."""
        if self.address == "memory":
            self.shared.leader = ""
            self.shared.tell()
            return
        if self.address.startswith("folder:"):
            head = self.log().head()
            assert self.log().append(head.number, Entry(term=head.term, leader="", facts_at=head.facts_at))
            return
        client = make_client(self.address)
        entry = await client.get(f"understudy/{self.job}/leader".encode())
        await client.revoke_lease(entry.lease)
        await client.close()

    def play(self, story: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            try:
                async with asyncio.timeout(_LIMIT):
                    await story()
            finally:
                for state_store in self.made:
                    await state_store.close()

        asyncio.run(whole())


@pytest.fixture(scope="module")
def one_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with running(tmp_path_factory.mktemp("etcd")) as servers:
        yield servers


@pytest.fixture(params=["memory", "folder", pytest.param("etcd", marks=needs_etcd)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "etcd":
        return Store(address=request.getfixturevalue("one_etcd").address)
    return Store(address="memory" if request.param == "memory" else f"folder://{tmp_path}")


@pytest.fixture(params=["folder", pytest.param("etcd", marks=needs_etcd)])
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """One that several processes can use."""
    etcd = request.param == "etcd"
    return Store(address=request.getfixturevalue("one_etcd").address if etcd else f"folder://{tmp_path}")


# -- every state store --------------------------------------------------------------------------------


def test_a_deposed_leader_is_refused_and_told(store: Store) -> None:
    async def story() -> None:
        first, second = store.state_store(), store.state_store()
        await first.lead("one:1")
        await first.record(b"of the first")
        await store.expire()
        await second.lead("two:2")
        with pytest.raises(Deposed):
            await first.record(b"too late")
        assert not first.leads()
        assert await first.deposed()
        assert await second.read() == b"of the first"
        await second.record(b"of the second")
        with pytest.raises(Deposed):
            await first.record(b"again too late")
        assert await first.read() == b"of the second"

    store.play(story)


def test_a_deposed_leader_may_lead_again_in_a_new_term(store: Store) -> None:
    async def story() -> None:
        state_store = store.state_store()
        term = await state_store.lead("one:1")
        await store.expire()
        assert await state_store.deposed()
        assert await state_store.lead("one:1") > term
        await state_store.record(b"facts")
        assert state_store.leads() and await state_store.read() == b"facts"

    store.play(story)


# -- every state store of several processes -------------------------------------------------------------------------


_LEADS_AND_WRITES = """
import asyncio, sys
from understudy.coordinator.stores import StoreRequest
from understudy.errors import Deposed
from understudy.plugins import registry
from understudy.plugins.kinds import STORE

async def main():
    provider = registry.named(STORE, sys.argv[1].partition(":")[0], "--store")
    state_store = provider.open(StoreRequest(address=sys.argv[1], job=sys.argv[2]))
    print("leads", await state_store.lead("paused:1"), flush=True)
    for line in iter(sys.stdin.readline, ""):
        print("believes", state_store.leads(), flush=True)
        try:
            await state_store.record(line.encode())
            print("written", flush=True)
        except Deposed as refused:
            print("deposed", refused, flush=True)

asyncio.run(main())
"""


def test_a_leader_that_was_paused_wakes_up_and_knows_it_is_over(shared_store: Store) -> None:
    store = shared_store

    async def story() -> None:
        second = store.state_store()
        with contextlib.ExitStack() as stack:
            process = _start_leader(store, stack)
            assert await asyncio.to_thread(_ask, process, "facts") == ["believes True", "written"]
            os.kill(process.pid, signal.SIGSTOP)
            paused = time.monotonic()
            await second.lead("two:2")
            assert time.monotonic() - paused < 8.0
            await second.record(b"of the second")
            os.kill(process.pid, signal.SIGCONT)
            believes, answer = await asyncio.to_thread(_ask, process, "late")
            assert believes == "believes False" and answer.startswith("deposed")
            assert await second.read() == b"of the second"

    store.play(story)


def _start_leader(store: Store, stack: contextlib.ExitStack) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", _LEADS_AND_WRITES, store.address, store.job],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 (nothing may outlive the tests)
    )
    stack.callback(process.wait, 10)
    stack.callback(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("leads")
    return process


def _ask(process: "subprocess.Popen[str]", text: str) -> list[str]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()
    return [process.stdout.readline().strip() for _ in range(2)]


# -- etcd --------------------------------------------------------------------------------------------------------------


class FrozenClock(SystemClock):
    """A leader whose own clock stands still does not notice that its lease has run out: only the store can refuse."""

    frozen: float | None = None

    def now(self) -> float:
        return super().now() if self.frozen is None else self.frozen


@needs_etcd
def test_even_a_leader_whose_clock_is_wrong_is_refused(one_etcd: Servers) -> None:
    store, clock = Store(one_etcd.address), FrozenClock()

    async def story() -> None:
        first = EtcdStateStore(store.address, store.job, clock=clock)
        store.made.append(first)
        second = store.state_store()
        await first.lead("one:1")
        clock.frozen = clock.now()
        await store.expire()
        await second.lead("two:2")
        await second.record(b"of the second")
        with pytest.raises(Deposed):
            await first.record(b"too late")
        with pytest.raises(Deposed):
            await first.record(secrets.token_bytes(1_500_000))
        assert await second.read() == b"of the second"

    store.play(story)


@needs_etcd
@pytest.mark.parametrize("damage", ["head", "piece"])
def test_facts_that_are_damaged_are_said_to_be(one_etcd: Servers, damage: str) -> None:
    store = Store(one_etcd.address)

    async def story() -> None:
        state_store = store.state_store()
        await state_store.lead("one:1")
        await state_store.record(secrets.token_bytes(2_000_001))
        client = make_client(store.address)
        if damage == "head":
            await client.put(f"understudy/{store.job}/facts".encode(), b"\xc1 no head")
        else:
            first = f"understudy/{store.job}/pieces/"
            await client.delete_prefix(first.encode())
        await client.close()
        with pytest.raises(LedgerError, match="head of the facts" if damage == "head" else "pieces of the facts"):
            await state_store.read()

    store.play(story)


@needs_etcd
def test_three_servers_go_on_when_their_leader_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, count=3) as servers:
        store = Store(servers.address)

        async def story() -> None:
            first, second = store.state_store(), store.state_store()
            await first.lead("one:1")
            await first.record(b"before")
            leader = servers.leader()
            assert leader is not None
            waiting = asyncio.create_task(second.lead("two:2"))
            servers.signal(leader, signal.SIGKILL)
            killed = time.monotonic()
            try:  # etcd needs 1 to 2 s for an election, or twice that when votes are split: longer than our lease
                await first.record(b"after")
                assert first.leads() and not waiting.done()
            except Deposed:
                assert not first.leads()
                await waiting
                await second.record(b"after")
            assert time.monotonic() - killed < 10.0
            await first.close()
            await waiting
            assert await second.read() == b"after"

        store.play(story)


@needs_etcd
def test_without_a_majority_nobody_leads_for_longer_than_a_lease(tmp_path: Path) -> None:
    with running(tmp_path, count=3) as servers:
        store = Store(servers.address)

        async def story() -> None:
            state_store = store.state_store()
            await state_store.lead("one:1")
            for name in list(servers.servers)[:2]:
                servers.signal(name, signal.SIGSTOP)
            with pytest.raises(Deposed):
                await state_store.record(b"nobody to count the votes")
            assert not state_store.leads()
            for name in list(servers.servers)[:2]:
                servers.signal(name, signal.SIGCONT)
            await state_store.lead("one:1")
            await state_store.record(b"facts")
            assert await state_store.read() == b"facts"

        store.play(story)


@pytest.mark.parametrize("address", ["etcd://", "etcd://:1", "etcd://127.0.0.1:port", "etcd://127.0.0.1:1,[::1]:2"])
def test_an_address_that_cannot_be_right_is_explained(address: str) -> None:
    with pytest.raises(SettingsError, match="--store"):
        make_client(address)


def test_a_request_whose_connection_another_one_has_closed_is_asked_again() -> None:
    """gRPC cancels it, and the task that waits for it must not end."""

    class Client:
        def __init__(self) -> None:
            self.channel, self.asked, self.closed = "first", 0, list[str]()

        async def get(self, _key: bytes) -> None:
            self.asked += 1
            if self.asked == 1:
                raise asyncio.CancelledError

        async def close(self) -> None:
            self.closed.append(self.channel)

    async def story() -> None:
        state_store = EtcdStateStore("etcd://127.0.0.1:1", "job")
        client = state_store._client = Client()
        assert await state_store.leader() == "" and client.asked == 2
        waiting = asyncio.create_task(state_store.deposed())
        await state_store._connect_anew_after(RuntimeError("invalid auth token"), "an older one")
        assert not client.closed, "another request has connected anew"
        await state_store._connect_anew_after(RuntimeError("invalid auth token"), "first")
        assert client.closed == ["first"]
        waiting.cancel()

    asyncio.run(story())


def test_a_task_that_is_cancelled_ends() -> None:
    class Client:
        channel = None

        async def get(self, _key: bytes) -> None:
            await asyncio.sleep(60)

    async def story() -> None:
        state_store = EtcdStateStore("etcd://127.0.0.1:1", "job")
        state_store._client = Client()
        asking = asyncio.create_task(state_store.leader())
        await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(story())
