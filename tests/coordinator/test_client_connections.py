"""The agent's end of a line, over real gRPC: it finds the leader, comes again, tells again, and obeys no older term."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.coordinator.lines import LIMIT, POLICY, TOKEN, coordinator, play, until

from understudy.agent.coordinator_client import CoordinatorClient, Introduction
from understudy.coordinator.state_store import SharedMemoryState
from understudy.foundation.clock import SystemClock
from understudy.foundation.ids import HostId, MemberId
from understudy.foundation.parenthood import die_with
from understudy.protocol import commands as cmd
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.policy import Policy
from understudy.protocol.sentences import sentence
from understudy.wire import host_messages as wire
from understudy.wire.job_tokens import JobTokens

pytestmark = pytest.mark.timeout(LIMIT + 10)


@dataclass
class HostEffects:
    """Starts nothing; remembers."""

    started: list[MemberId] = field(default_factory=list)
    killed: list[MemberId] = field(default_factory=list)
    sent: list[cmd.ToAgent] = field(default_factory=list)
    stopped: list[cmd.StopJob] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def tell(self, _code: str, text: str, /, **_: object) -> None:
        self.said.append(text)

    def carry_out(self, command: cmd.ToAgent) -> None:
        match command:
            case cmd.StartMember(member=member):
                self.started.append(member)
            case cmd.WatchClosely():
                pass
            case cmd.KillMember(member=member, hang=hang, reason=reason):
                assert reason and not hang
                self.killed.append(member)
            case cmd.DismissStranger(member=member, reason=reason):
                assert reason
                self.killed.append(member)
            case cmd.StopJob():
                self.stopped.append(command)
            case _:
                assert cmd.members_of(command)
                self.sent.append(command)


class Stubborn(CoordinatorClient):
    """Goes on asking those whom it knows, whoever they say is the leader."""

    def _on_refusal(self, refusal: wire.Refuse) -> str:
        return super()._on_refusal(msgspec.structs.replace(refusal, leader=""))


@contextlib.asynccontextmanager
async def client(
    addresses: Sequence[str],
    host: str = "a",
    token: str | JobTokens = TOKEN,
    kind: type[CoordinatorClient] = CoordinatorClient,
    policy: Policy = POLICY,
) -> AsyncIterator[tuple[CoordinatorClient, HostEffects]]:
    effects = HostEffects()
    introduction = Introduction(
        job="job",
        token=token,
        host=host,
        ranks=1,
        spares=0,
        place=None,
        settings=msgspec.to_builtins(policy),
        store=lambda: "127.0.0.1:1",
        members=lambda: [member for member in effects.started if member not in effects.killed],
    )
    made = kind(
        introduction, effects=effects, addresses=addresses, certificates=None, clock=SystemClock(), tell=effects.tell
    )
    made.start()
    try:
        yield made, effects
    finally:
        await made.close("the test ends")


def test_it_finds_the_leader_among_several_and_the_next_one_when_that_goes() -> None:
    async def story() -> None:
        shared = SharedMemoryState()
        async with (
            coordinator(shared=shared, leads=False) as second,
            coordinator(shared=shared) as first,
            client([second.address, first.address]) as (agent, effects),
            client([first.address], "b") as (other, _),
        ):
            await until(lambda: agent.connected and other.connected and bool(effects.started), "both at the first")
            member = effects.started[0]
            agent.handle(ev.MemberConnected(at=0.0, member=member))
            await until(lambda: bool(effects.sent), "its assignment")
            first.state_store.depose()
            first.leading.step_down("its term is over")
            await second.lead()
            first.service.leads = second.address
            await until(lambda: agent.term == 2 and agent.connected, "the second")
            await until(lambda: other.term == 2, "an agent that learnt of it by being refused")
            leading = second.leading.coordinator
            assert leading is not None
            await until(lambda: leading.machine.roster.members[member].connected, "that it is told again")
            assert not effects.stopped and not effects.killed

    play(story)


def test_ends_of_processes_are_told_to_whoever_leads_next() -> None:
    async def story() -> None:
        shared = SharedMemoryState()
        async with coordinator(shared=shared) as first, coordinator(shared=shared, leads=False) as second:
            addresses = [first.address, second.address]
            async with client(addresses) as (agent, effects), client(addresses, "b"):
                await until(lambda: bool(effects.started) and shared.facts is not None, "a world")
                first.state_store.depose()
                first.leading.step_down("its term is over")
                await until(lambda: not agent.connected, "the line to end")
                member = effects.started.pop()
                cause = Cause(kind=CauseKind.SIGNAL, detail="killed by signal 9", exit_code=-9)
                agent.handle(ev.MemberLost(at=0.0, member=member, cause=cause))
                await second.lead()
                await until(lambda: second.leading.coordinator is not None, "the first host of the run")
                leading = second.leading.coordinator
                assert leading is not None
                await until(lambda: member not in leading.machine.roster.members, "the loss to be known")

    play(story)


def test_it_comes_again_when_the_coordinator_does() -> None:
    async def story() -> None:
        async with coordinator() as first:
            port = first.port
            async with client([first.address]) as (agent, effects):
                await until(lambda: agent.connected, "a line")
                await first.service.close()
                await until(lambda: not agent.connected, "its end")
                assert any("training goes on" in said for said in effects.said)
                await first.service.open(f"127.0.0.1:{port}", None)
                await until(lambda: agent.connected, "the line again")
                assert not effects.stopped

    play(story)


def test_a_wrong_token_ends_a_host_that_was_never_part_of_the_job() -> None:
    async def story() -> None:
        async with (
            coordinator() as place,
            client([place.address], token="not the token of this job") as (agent, effects),
        ):
            await until(lambda: bool(effects.stopped), "the end")
            assert "token" in sentence(effects.stopped[0].reason) and agent.given_up and not agent.connected
            assert not any("tried again" in said for said in effects.said)  # for it is not
            assert place.service.refused["unauthorised"] >= 1

    play(story)


def test_an_older_term_is_not_obeyed() -> None:
    async def story() -> None:
        async with coordinator() as place, client([place.address]) as (agent, effects):
            await until(lambda: agent.connected, "a line")
            agent.term = 5
            place.leading.lines.carry_out(cmd.StartMember(member=MemberId("m-9"), host=HostId("a")))
            await until(lambda: agent.refused["older term"] == 1, "the refusal")
            assert not effects.started

    play(story)


# -- silence -----------------------------------------------------------------------------------------------------------

_AGENT = """
import asyncio, sys
from tests.coordinator.test_client_connections import client

async def main():
    async with client([sys.argv[1]]) as (agent, effects):
        while True:
            await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_host_that_stands_still_is_noticed_within_three_seconds() -> None:
    """Its connection stays open and its kernel still answers; only the transport's keep-alive tells."""

    async def story() -> None:
        async with coordinator() as place:
            process: subprocess.Popen[Any] = subprocess.Popen(
                [sys.executable, "-c", _AGENT, place.address],
                preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 (nothing may outlive the tests)
            )
            try:
                lines = place.leading.lines
                await until(lambda: HostId("a") in lines.lines, "its line", 20.0)
                os.kill(process.pid, signal.SIGSTOP)
                stopped = time.monotonic()
                await until(lambda: HostId("a") not in lines.lines, "the end of its line")
                assert time.monotonic() - stopped < 3.0
            finally:
                process.kill()
                process.wait(10)

    play(story)


# -- starting workers --------------------------------------------------------------------------------------------------

_FORKS = """
import asyncio, os, subprocess, sys
from tests.coordinator.lines import coordinator, until
from tests.coordinator.test_client_connections import client
from understudy.foundation.ids import HostId, MemberId

async def main():
    async with coordinator() as place, client([place.address]) as (agent, effects):
        await until(lambda: agent.connected, "a line")
        async def chatter():
            while True:
                place.leading.lines.carry_out(cmd.StartMember(member=MemberId("m-9"), host=HostId("a")))
                await asyncio.sleep(0)
        chatting, ended = asyncio.create_task(chatter()), []
        while len(ended) < 60:
            child = subprocess.Popen(["true"], preexec_fn=lambda: None)
            await until(lambda: child.poll() is not None, "its end")
            ended.append(child.returncode)
        chatting.cancel()
        print(sum(code != 0 for code in ended), "GRPC_ENABLE_FORK_SUPPORT" in os.environ)

asyncio.run(main())
"""


def test_an_agent_may_start_processes_while_it_speaks() -> None:
    """gRPC's own handling of forks ended one in nine of them."""
    done = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, text=True, timeout=180, check=False)
    assert done.stdout.strip() == "0 False", done.stderr[-2000:]
    assert "fork" not in done.stderr
