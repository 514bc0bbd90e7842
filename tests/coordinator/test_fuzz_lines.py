"""Nonsense over gRPC: whatever is sent, by strangers or by hosts, the coordinator refuses it, counts it and goes on."""

import asyncio
import contextlib
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.coordinator.lines import POLICY, TOKEN, Place, attending, coordinator, greeting, line_to

from understudy.coordinator.leader import Leader
from understudy.coordinator.state_store import MemoryStateStore
from understudy.errors import WireError
from understudy.foundation.clock import SetClock
from understudy.wire import host_messages as wire
from understudy.wire import message_auth, transport
from understudy.wire.messages import Measured

pytestmark = pytest.mark.timeout(300)
quickly = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
numbers = st.integers(min_value=-(2**63), max_value=2**63 - 1)
text = st.text(st.characters(codec="utf-8"), max_size=20)
plain = st.recursive(
    st.none() | st.booleans() | numbers | st.floats() | text | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


@dataclass
class Target:
    """A coordinator that lives through all examples of a test, and one honest host whose line must never break."""

    loop: asyncio.AbstractEventLoop
    place: Place
    honest: Any

    def run(self, story: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(story, 20.0))

    def refusals(self) -> int:
        return sum(self.place.service.refused.values())

    def check(self) -> None:
        assert "honest" in self.place.leading.lines.lines and not self.place.leading.over.is_set()
        assert self.place.service.refused["not understood"] == 0


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    loop = asyncio.new_event_loop()
    stack = contextlib.AsyncExitStack()

    async def begin() -> Target:
        place = await stack.enter_async_context(coordinator())
        return Target(loop, place, await stack.enter_async_context(attending(place, "honest")))

    try:
        yield loop.run_until_complete(begin())
    finally:
        loop.run_until_complete(stack.aclose())
        loop.close()


async def _raw(place: Place, messages: list[bytes], metadata: Any = ()) -> str:
    """A stranger with gRPC and nothing else. Returns the status that it gets."""
    channel = transport.open_channel(place.address, None)
    try:
        call = channel.stream_stream(transport.PATH)(metadata=metadata)
        with contextlib.suppress(Exception):
            for message in messages:
                await call.write(message)
            await call.done_writing()
        return str((await call.code()).name)
    finally:
        await channel.close()


nonces = st.lists(st.tuples(st.just("understudy-nonce-bin"), st.binary(max_size=20) | st.just(b"x" * 16)), max_size=2)


@quickly
@given(st.lists(st.binary(max_size=200), max_size=3), nonces)
def test_strangers(target: Target, messages: list[bytes], metadata: list[tuple[str, bytes]]) -> None:
    before = target.refusals()
    assert target.run(_raw(target.place, messages, metadata)) != "OK"
    assert target.refusals() == before + 1
    target.check()


async def _sealed(place: Place, *bodies: bytes) -> None:
    async with line_to(place) as agent:
        with contextlib.suppress(transport.grpc_module().aio.AioRpcError):
            for body in bodies:
                await agent.stream.write(body)
            await agent.call.done_writing()
            while await agent.stream.read() is not None:
                pass


greetings = st.fixed_dictionaries(
    {}, optional=dict.fromkeys((*wire.Attend.__struct_fields__, "unknown"), plain) | {"type": plain}
)


@quickly
@given(greetings)
def test_greetings_by_somebody_who_knows_the_token(target: Target, changes: dict[str, Any]) -> None:
    before = target.refusals()
    sent = {**msgspec.to_builtins(greeting("guest")), **changes}
    target.run(_sealed(target.place, msgspec.msgpack.encode(sent)))
    try:
        msgspec.convert(sent, wire.Attend)
    except msgspec.ValidationError:
        assert target.refusals() == before + 1
    target.check()


@quickly
@given(st.binary(max_size=300) | plain.map(msgspec.msgpack.encode))
def test_messages_after_a_good_greeting(target: Target, body: bytes) -> None:
    before = target.place.service.refused.copy()
    target.run(_sealed(target.place, wire.encode(greeting("guest")), body))
    assert target.place.service.refused["malformed"] == before["malformed"] + 1
    target.check()


def test_a_recording_of_a_whole_line_is_refused(target: Target) -> None:
    async def story() -> str:
        recorded: list[bytes] = []

        async with line_to(target.place) as agent:
            written = agent.call.write

            class Recorder:
                async def write(self, data: bytes) -> None:
                    recorded.append(data)
                    await written(data)

            sealed = message_auth.AuthenticatedStream(Recorder(), agent.stream._reading, agent.stream._writing)
            await sealed.write(wire.encode(greeting("guest")))
            await agent.hear(wire.Welcome)
        return await _raw(target.place, recorded, [("understudy-nonce-bin", b"x" * 16)])

    before = target.place.service.refused["unauthorised"]
    assert target.run(story()) == "UNAUTHENTICATED"
    assert target.place.service.refused["unauthorised"] == before + 1
    target.check()


def test_a_message_that_is_said_twice_on_its_own_line_is_refused(target: Target) -> None:
    async def story() -> None:
        async with attending(target.place, "guest") as agent:
            measured = wire.encode(Measured(generation=1, timings={}))
            sealed = agent.stream._writing.sign(measured)
            await agent.call.write(sealed)
            await agent.call.write(sealed)
            assert await agent.ended() == "UNAUTHENTICATED"

    before = target.place.service.refused["replayed"]
    target.run(story())
    assert target.place.service.refused["replayed"] == before + 1
    target.check()


@pytest.mark.parametrize("size", [wire.LARGEST + 1, transport.LARGEST_TAKEN - 100])
def test_what_is_too_large_is_refused_and_counted(target: Target, size: int) -> None:
    before = target.place.service.refused["oversized"]
    target.run(_sealed(target.place, wire.encode(greeting("guest")), bytes(size)))
    assert target.place.service.refused["oversized"] == before + 1
    target.check()


def test_what_is_far_too_large_never_reaches_us(target: Target) -> None:
    metadata = [("understudy-nonce-bin", b"x" * 16)]
    assert target.run(_raw(target.place, [bytes(transport.LARGEST_TAKEN + 1)], metadata)) != "OK"
    target.check()


# -- the leader, without a network -------------------------------------------------------------------------------------

names = st.sampled_from([f"m-{number}" for number in range(6)]) | st.text(max_size=8)
small = st.integers(min_value=-2, max_value=4)
fields: dict[str, st.SearchStrategy[Any]] = {
    "member": names,
    "generation": small | numbers,
    "twin_key": st.sampled_from(["k", "other"]) | st.none(),
    "holdings": st.lists(small, max_size=3),
    "position": st.fixed_dictionaries({"holds": small | st.none()}, optional={"arrived": st.booleans()}),
    "cause": st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["exit", "signal", "script error", "hang", "dismissed"]),
            "detail": st.text(max_size=5),
        },
        optional={"exit_code": small, "step": small},
    ),
    "evidence": st.text(max_size=5),
    "stopped": st.lists(names, max_size=2),
    "pace": st.floats(),
    "why": st.text(max_size=5),
}


@st.composite
def tales(draw: st.DrawFn) -> bytes:
    """An event that is well formed, and may be wrong in every other way."""
    kind = draw(st.sampled_from(sorted(typing.get_args(wire.HostEvent), key=lambda kind: kind.__name__)))
    wanted = [name for name in kind.__struct_fields__ if name in fields]
    event = {name: draw(fields[name]) for name in wanted}
    return msgspec.msgpack.encode({"type": "Happened", "event": {"type": kind.__name__, "at": 0.0, **event}})


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from("ab"), tales()), max_size=25))
def test_well_formed_events_in_any_order_are_refused_or_understood(told: list[tuple[str, bytes]]) -> None:
    """From hosts that know the token: they may ruin their own job, but nothing may raise anything but a refusal."""

    async def story() -> None:
        state_store, clock = MemoryStateStore(), SetClock()
        leader = Leader(await state_store.lead("here:1"), state_store=state_store, clock=clock, journals=())
        await leader.begin()
        lines = {}
        for host in "ab":
            lines[host] = leader.welcome(greeting(host))
            leader.attended(greeting(host))
        for host, happened in told:
            with contextlib.suppress(WireError):
                leader.heard(lines[host], wire.decode_from_host(happened))
            await asyncio.sleep(0)
            clock.advance_to(clock.now() + 0.5)
            leader._tick()
        leader.step_down("the test ends")

    asyncio.run(story())


def test_the_policy_of_these_tests_is_one_that_a_host_may_bring() -> None:
    assert msgspec.convert(msgspec.to_builtins(POLICY), type(POLICY)) == POLICY and len(TOKEN) >= 16
