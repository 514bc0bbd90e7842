"""Seals: what was changed, said twice, or said elsewhere is refused."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.errors import WireError
from understudy.wire import message_auth

TOKEN = "a token of sixteen letters or more"


class Pipe:
    """One end of a stream in memory, with the parts of gRPC that sealing uses."""

    def __init__(self, metadata: Iterable[tuple[str, bytes]] = ()) -> None:
        self.given, self.answered = tuple(metadata), ()
        self.written: list[bytes] = []
        self.to_read: list[bytes] = []

    def invocation_metadata(self) -> Any:
        return self.given

    async def send_initial_metadata(self, metadata: Any) -> None:
        self.answered = metadata

    async def initial_metadata(self) -> Any:
        return self.answered

    def cancel(self) -> None:
        pass

    async def write(self, data: bytes) -> None:
        self.written.append(data)

    async def read(self) -> bytes | None:
        return self.to_read.pop(0) if self.to_read else None


async def a_line(agents: str = TOKEN, coordinators: str = TOKEN) -> tuple[Pipe, Any, Pipe, Any]:
    """The agent's pipe and stream, the coordinator's pipe and stream; nothing travels by itself."""
    agent_pipe, coordinator_pipe = Pipe(), Pipe()
    streams: list[message_auth.AuthenticatedStream] = []

    def method(metadata: Any) -> Pipe:
        coordinator_pipe.given = metadata
        return agent_pipe

    class Answering(Pipe):
        async def initial_metadata(self) -> Any:
            streams.append(await message_auth.answer(coordinator_pipe, coordinators))
            return coordinator_pipe.answered

    agent_pipe = Answering()
    agent = await message_auth.call(method, agents, 1.0)
    return agent_pipe, agent, coordinator_pipe, streams[0]


def test_both_ways_arrive_in_order() -> None:
    async def story() -> None:
        agent_pipe, agent, coordinator_pipe, coordinator = await a_line()
        for body in (b"one", b"", b"three"):
            await agent.write(body)
            await coordinator.write(body * 2)
        coordinator_pipe.to_read, agent_pipe.to_read = agent_pipe.written, coordinator_pipe.written
        assert [await coordinator.read() for _ in range(4)] == [b"one", b"", b"three", None]
        assert [await agent.read() for _ in range(4)] == [b"oneone", b"", b"threethree", None]

    asyncio.run(story())


@given(st.binary(max_size=64), st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_a_changed_byte_is_noticed(body: bytes, at: int, change: int) -> None:
    async def story() -> None:
        agent_pipe, agent, coordinator_pipe, coordinator = await a_line()
        await agent.write(body)
        data = bytearray(agent_pipe.written[0])
        data[at % len(data)] ^= change
        coordinator_pipe.to_read = [bytes(data)]
        with pytest.raises(WireError) as refused:
            await coordinator.read()
        assert refused.value.kind == "unauthorised"

    asyncio.run(story())


@given(st.binary(max_size=100))
def test_what_was_never_sealed_is_refused(data: bytes) -> None:
    async def story() -> None:
        _, _, coordinator_pipe, coordinator = await a_line()
        coordinator_pipe.to_read = [data]
        with pytest.raises(WireError):
            await coordinator.read()

    asyncio.run(story())


@pytest.mark.parametrize("order", [(0, 0), (1,), (0, 2), (0, 1, 0)])
def test_a_message_out_of_its_place_is_a_replay(order: tuple[int, ...]) -> None:
    async def story() -> None:
        agent_pipe, agent, coordinator_pipe, coordinator = await a_line()
        for number in range(3):
            await agent.write(bytes([number]))
        coordinator_pipe.to_read = [agent_pipe.written[place] for place in order]
        for _ in order[:-1]:
            await coordinator.read()
        with pytest.raises(WireError) as refused:
            await coordinator.read()
        assert refused.value.kind == "replayed"

    asyncio.run(story())


def test_a_recording_of_one_line_is_worth_nothing_on_another_nor_back_to_its_speaker() -> None:
    async def story() -> None:
        agent_pipe, agent, _, _ = await a_line()
        _, _, other_pipe, other = await a_line()
        await agent.write(b"hello")
        other_pipe.to_read, agent_pipe.to_read = list(agent_pipe.written), list(agent_pipe.written)
        for stream in (other, agent):
            with pytest.raises(WireError) as refused:
                await stream.read()
            assert refused.value.kind == "unauthorised"

    asyncio.run(story())


def test_who_has_another_token_is_not_understood_on_either_side() -> None:
    async def story() -> None:
        agent_pipe, agent, coordinator_pipe, coordinator = await a_line(agents="another one")
        await agent.write(b"hello")
        await coordinator.write(b"hello")
        coordinator_pipe.to_read, agent_pipe.to_read = agent_pipe.written, coordinator_pipe.written
        for stream in (coordinator, agent):
            with pytest.raises(WireError, match="token"):
                await stream.read()

    asyncio.run(story())


@pytest.mark.parametrize("nonces", [[], [b""], [b"short"], [b"x" * 17], [b"x" * 16] * 2])
def test_a_line_needs_one_nonce_of_the_right_length(nonces: list[bytes]) -> None:
    pipe = Pipe(("understudy-nonce-bin", nonce) for nonce in nonces)
    with pytest.raises(WireError):
        asyncio.run(message_auth.answer(pipe, TOKEN))
