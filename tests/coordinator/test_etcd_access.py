"""etcd with TLS and a login: the state store gets in with both, and not without."""

import asyncio
import contextlib
import signal
import time
from pathlib import Path

import pytest
from tests.coordinator.lines import TOKEN

from understudy.coordinator.etcd import EtcdStateStore
from understudy.coordinator.etcd_client import EtcdAccess
from understudy.coordinator.store_login import StoreLogin
from understudy.files.private import write_private
from understudy.wire.certificates import Certificates
from understudy.wire.issuing import make_set
from understudy.wire.roles import NAME
from understudy_testkit.faults import etcd_servers
from understudy_testkit.faults.coordinators import running
from understudy_testkit.faults.etcd_servers import Servers

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(etcd_servers.why_not() is not None, reason=str(etcd_servers.why_not())),
]
LOGIN = ("--user", "root:secret")


def lock(servers: Servers) -> None:
    """Only who has logged in may read or write, and only what is ours."""
    (server,) = servers.servers.values()
    for question in (
        ("user", "add", "root:secret"),
        ("user", "grant-role", "root", "root"),
        ("role", "add", "jobs"),
        ("role", "grant-permission", "jobs", "readwrite", "understudy/", "--prefix=true"),
        ("user", "add", "coordinator:password of it"),
        ("user", "grant-role", "coordinator", "jobs"),
        ("auth", "enable"),
    ):
        asked = server.ask(*question)
        assert asked.returncode == 0, asked.stderr


async def leads(state_store: EtcdStateStore, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await state_store.lead("one:1")
            await state_store.record(b"facts")
            return await state_store.read() == b"facts"
    except TimeoutError:
        return False
    finally:
        await state_store.close()


def test_with_certificates_and_a_login_and_not_without(tmp_path: Path) -> None:
    make_set(tmp_path / "ours", ["etcd", "boss"])
    make_set(tmp_path / "others", ["boss"])
    ours, others = (Certificates.read(tmp_path / whose / "boss") for whose in ("ours", "others"))
    known, wrong = StoreLogin(("coordinator", "password of it")), StoreLogin(("coordinator", "wrong"))
    with etcd_servers.running(tmp_path, certificates=tmp_path / "ours" / "etcd") as servers:
        lock(servers)

        async def story() -> None:
            def state_store(access: EtcdAccess) -> EtcdStateStore:
                return EtcdStateStore(servers.address, "job", access=access)

            assert await leads(state_store(EtcdAccess(ours, NAME, known)), 20.0)
            for access in (
                EtcdAccess(),
                EtcdAccess(others, NAME, known),
                EtcdAccess(ours, "another.name", known),
                EtcdAccess(ours, NAME),
                EtcdAccess(ours, NAME, wrong),
            ):
                assert not await leads(state_store(access), 2.0), access

        asyncio.run(story())


def test_a_coordinator_with_flags_goes_on_when_etcd_has_forgotten_its_login(tmp_path: Path) -> None:
    make_set(tmp_path / "set", ["etcd", "boss"])
    write_private(tmp_path / "login", b"coordinator:password of it\n")
    flags = ("--store-certs", str(tmp_path / "set" / "boss"), "--store-name", NAME)
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(etcd_servers.running(tmp_path, certificates=tmp_path / "set" / "etcd"))
        lock(servers)
        login = ("--store-login", str(tmp_path / "login"))
        store = ("--store", servers.address)
        coordinator = stack.enter_context(running(tmp_path, "c", TOKEN, *store, *flags, *login))
        coordinator.find(r"(leading), term")
        deadline = time.monotonic() + 20.0
        while not coordinator.status()["leading"] and time.monotonic() < deadline:
            time.sleep(0.05)
        servers.signal("e0", signal.SIGKILL)
        coordinator.find(r"(not leading any more)")
        servers._start_one("e0")
        coordinator.find(r"(?s)not leading any more.*(leading), term", 40.0)


def test_new_certificates_and_a_new_login_are_used_when_etcd_has_to_be_reached_anew(tmp_path: Path) -> None:
    """Of another authority: the former certificates are of no use any more, in either direction."""
    make_set(tmp_path / "set", ["etcd", "boss"])
    write_private(tmp_path / "login", b"coordinator:password of it\n")
    ours, login = Certificates.read(tmp_path / "set" / "boss"), StoreLogin.read(tmp_path / "login")
    with etcd_servers.running(tmp_path, certificates=tmp_path / "set" / "etcd") as servers:
        lock(servers)

        async def story() -> None:
            state_store = EtcdStateStore(servers.address, "job", access=EtcdAccess(ours, NAME, login))
            try:
                async with asyncio.timeout(90.0):
                    first = await state_store.lead("one:1")
                    await state_store.record(b"facts")
                    await asyncio.to_thread(change)
                    write_private(tmp_path / "login", b"coordinator:its next password\n")
                    assert ours.read_again() and login.read_again() and not login.read_again()
                    assert await state_store.read() == b"facts"
                    assert await state_store.lead("one:1") > first
            finally:
                await state_store.close()

        def change() -> None:
            (server,) = servers.servers.values()
            for question in (
                ("user", "delete", "coordinator"),
                ("user", "add", "coordinator:its next password"),
                ("user", "grant-role", "coordinator", "jobs"),
            ):
                asked = server.ask(*LOGIN, *question)
                assert asked.returncode == 0, asked.stderr
            make_set(tmp_path / "set", ["etcd", "boss"])
            servers.signal("e0", signal.SIGKILL)
            servers._start_one("e0")

        asyncio.run(story())
