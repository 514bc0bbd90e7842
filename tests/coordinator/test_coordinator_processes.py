"""Coordinators as people start them: two processes on one etcd, one of which is stopped in the middle of its term."""

import asyncio
import contextlib
import http.client
import os
import re
import signal
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.coordinator.lines import POLICY, TOKEN, play, until
from tests.coordinator.test_client_connections import Stubborn, client

from understudy.coordinator.etcd import EtcdStateStore
from understudy.coordinator.etcd_client import make_client
from understudy.foundation.ids import Generation
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import ReleaseMembers
from understudy.protocol.policy import Policy
from understudy.wire.issuing import make_set
from understudy_testkit.faults import etcd_servers
from understudy_testkit.faults.coordinators import CoordinatorProcess, running
from understudy_testkit.faults.etcd_servers import Servers

pytestmark = pytest.mark.timeout(240)
# As users have it: a new leader waits until agents, which look for it at growing intervals, have found it.
PATIENT = replace(POLICY, takeover_patience=Policy(world_size=2).takeover_patience)
needs_etcd = pytest.mark.skipif(etcd_servers.why_not() is not None, reason=str(etcd_servers.why_not()))


def test_one_coordinator_in_memory_answers_probes(tmp_path: Path) -> None:
    with running(tmp_path, "c", TOKEN) as coordinator:
        coordinator.find(r"(leading), term 1")
        assert coordinator.status("/health") == {"healthy": True, "leading": True}
        status = coordinator.status()
        assert (status["job"], status["leading"], status["term"]) == ("job", True, 1)
        assert status["leader"] == coordinator.address and status["refused"] == {"grpc": {}, "http": {}}
        assert "torch" not in _modules_of(coordinator)


def _modules_of(coordinator: CoordinatorProcess) -> str:
    """What is mapped into it."""
    return Path(f"/proc/{coordinator.process.pid}/maps").read_text()


def test_certificates_are_warned_of_and_renewed_without_a_restart(tmp_path: Path) -> None:
    make_set(tmp_path / "set", ["boss", "guest"], days=2)
    with running(tmp_path, "c", TOKEN, "--certs", str(tmp_path / "set" / "boss")) as coordinator:
        assert "boss/cert.pem" in coordinator.find(r"the certificate (\S+) ends in 48 hours")
        old = _context(tmp_path / "set")
        assert _health(coordinator, old) == 200
        make_set(tmp_path / "set", ["boss", "guest"])
        coordinator.find(r"the certificates in \S+/boss (are new ones)", 60.0)
        assert _health(coordinator, _context(tmp_path / "set")) == 200
        with pytest.raises(ssl.SSLError):
            _health(coordinator, old)
        assert coordinator.process.poll() is None


def _context(certificates: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    context.check_hostname = False
    context.load_cert_chain(certificates / "guest" / "cert.pem", certificates / "guest" / "key.pem")
    return context


def _health(coordinator: CoordinatorProcess, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", coordinator.http_port, timeout=10.0, context=context)
    connection.request("GET", "/health")
    return connection.getresponse().status


@needs_etcd
def test_a_leader_that_was_paused_decides_nothing_when_it_wakes_up(tmp_path: Path) -> None:
    with _two_on_one_etcd(tmp_path) as (etcd, first, second):

        async def story() -> None:
            both, state_store = [first.address, second.address], EtcdStateStore(etcd.address, "job")
            async with (
                client(both, policy=PATIENT) as (agent, effects),
                client(both, "b", policy=PATIENT) as (other, others),
            ):
                await until(lambda: bool(effects.started and others.started), "a world")
                await asyncio.to_thread(os.kill, first.process.pid, signal.SIGSTOP)
                paused, member = time.monotonic(), effects.started[0]
                first_term = agent.term
                await until(lambda: agent.term > first_term and other.term > first_term, "the second to be obeyed")
                assert time.monotonic() - paused < 8.0
                agent.handle(ev.MemberConnected(at=0.0, member=member))
                await until(lambda: bool(effects.sent), "orders of the second")
                facts, orders = await state_store.read(), list(effects.sent)
                async with client([first.address], "a", kind=Stubborn, policy=PATIENT) as (late, late_hands):
                    late.handle(ev.MemberLost(at=0.0, member=member, cause=_killed()))
                    os.kill(first.process.pid, signal.SIGCONT)
                    await asyncio.to_thread(first.find, r"(not leading any more)")
                    await until(lambda: bool(late_hands.said), "a refusal")
                    assert not late.connected and not late_hands.killed
                    assert not late_hands.started and not late_hands.sent
                assert await state_store.read() == facts and not effects.killed
                assert all(order in orders for order in effects.sent), "the second may repeat an order if a line broke"
                assert await asyncio.to_thread(lambda: first.status()["leading"]) is False
                second.process.kill()
                await asyncio.to_thread(first.find, r"(?s)standing by.*standing by.*(leading, term \d+)")
                await until(lambda: agent.connected and agent.term > first_term, "the first again")
            await state_store.close()

        play(story)
        terms = [int(term) for term in re.findall(r"leading, term (\d+)", first.output.read_text())]
        assert len(terms) == 2 and terms[0] < int(second.find(r"leading, term (\d+)")) < terms[1]


@needs_etcd
def test_a_leader_that_is_asked_to_go_gives_up_the_lead_at_once(tmp_path: Path) -> None:
    """A standby need not wait for the end of its lease."""
    with _two_on_one_etcd(tmp_path) as (_etcd, first, second):
        first.process.terminate()
        asked = time.monotonic()
        second.find(r"(leading), term")
        assert time.monotonic() - asked < 2.0
        assert first.process.wait(10) == 128 + signal.SIGTERM


@needs_etcd
def test_a_job_of_the_same_name_runs_again_and_again(tmp_path: Path) -> None:
    """The facts of the last run are there each time; unreadable ones are a sentence, and --new-run gives them up."""
    with etcd_servers.running(tmp_path) as etcd:
        found: list[str] = []
        for number in range(3):
            with running(tmp_path, f"c{number}", TOKEN, "--store", etcd.address) as coordinator:
                play(partial(_a_short_job, coordinator.address))
                assert coordinator.process.wait(40) == 0
                coordinator.find(r"(the job succeeded)")
                found.append(coordinator.find(r"run (\S+) begins"))
        assert len(set(found)) == 3
        play(partial(_spoil, etcd.address))
        with running(tmp_path, "spoilt", TOKEN, "--store", etcd.address) as coordinator:
            assert coordinator.process.wait(20) == 2
            said = coordinator.output.read_text()
            assert "job job cannot be read" in said and "--new-run" in said and "Traceback" not in said
        with running(tmp_path, "anew", TOKEN, "--store", etcd.address, "--new-run") as coordinator:
            play(partial(_a_short_job, coordinator.address))
            assert coordinator.process.wait(40) == 0


async def _a_short_job(address: str) -> None:
    """Both ranks train and end their scripts."""
    async with client([address], policy=PATIENT) as a, client([address], "b", policy=PATIENT) as b:
        await until(lambda: bool(a[1].started and b[1].started), "a world")
        both = [(agent, effects, effects.started[0]) for agent, effects in (a, b)]
        for agent, _, member in both:
            agent.handle(ev.MemberConnected(at=0.0, member=member))
        for agent, _, member in both:
            agent.handle(ev.MemberEstablished(at=0.0, member=member, generation=Generation(1), twin_key="k"))
        for agent, _, member in both:
            agent.handle(ev.MemberFinished(at=0.0, member=member, generation=Generation(1)))
        await until(
            lambda: all(any(isinstance(m, ReleaseMembers) for m in effects.sent) for _, effects, _ in both),
            "the release",
        )
        ended = Cause(kind=CauseKind.EXIT, detail="its script ended", exit_code=0)
        for agent, _, member in both:
            agent.handle(ev.MemberLost(at=0.0, member=member, cause=ended))
        await until(lambda: bool(a[1].stopped and b[1].stopped), "the end")


async def _spoil(address: str) -> None:
    client = make_client(address)
    await client.put(b"understudy/job/facts", b"\xc1")
    await client.close()


@contextlib.contextmanager
def _two_on_one_etcd(folder: Path) -> Iterator[tuple[Servers, CoordinatorProcess, CoordinatorProcess]]:
    """The first of the two leads."""
    with (
        etcd_servers.running(folder) as etcd,
        running(folder, "first", TOKEN, "--store", etcd.address) as first,
        running(folder, "second", TOKEN, "--store", etcd.address) as second,
    ):
        _in_order(first, second)
        yield etcd, first, second


def _in_order(first: CoordinatorProcess, second: CoordinatorProcess) -> None:
    """Which one leads is chance; the test wants to stop the leader."""
    deadline = time.monotonic() + 20.0
    while not (first.status()["leading"] or second.status()["leading"]):
        assert time.monotonic() < deadline, "nobody leads"
        time.sleep(0.05)
    if second.status()["leading"]:
        first.process, second.process = second.process, first.process
        first.output, second.output = second.output, first.output


def _killed() -> Cause:
    return Cause(kind=CauseKind.SIGNAL, detail="killed by signal 9", exit_code=-9)
