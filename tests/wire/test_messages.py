"""Messages and frames: what goes in comes out, and what is not ours is refused."""

import socket
import struct
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.errors import WireError
from understudy.foundation.ids import Generation, MemberId
from understudy.protocol import events
from understudy.protocol.commands import ReleaseMembers
from understudy.wire import framing, messages

FROM_WORKER: tuple[type[msgspec.Struct], ...] = messages.FromWorker.__args__
FROM_AGENT: tuple[type[msgspec.Struct], ...] = messages.FromAgent.__args__

FINISHED = events.MemberFinished(at=events.UNTIMED, member=MemberId("m-0"), generation=Generation(1))
numbers = st.integers(min_value=-(2**63), max_value=2**63 - 1)
st.register_type_strategy(int, numbers)
st.register_type_strategy(float, st.floats(allow_nan=False))


@settings(deadline=None)
@given(st.one_of([st.from_type(kind) for kind in FROM_WORKER]).filter(lambda one: getattr(one, "generation", 0) >= 0))
def test_every_message_of_a_worker_arrives_as_it_was_sent(message: Any) -> None:
    assert messages.decode_from_worker(messages.encode(message)) == message


@settings(deadline=None)
@given(st.one_of([st.from_type(kind) for kind in FROM_AGENT]))
def test_every_message_of_an_agent_arrives_as_it_was_sent(message: Any) -> None:
    assert messages.decode_from_agent(messages.encode(message)) == message


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="Invalid value 'Sesame'"):
        messages.decode_from_worker(msgspec.msgpack.encode({"type": "Sesame"}))


def test_a_message_in_the_wrong_direction_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        messages.decode_from_worker(messages.encode(ReleaseMembers(generation=Generation(1), members=())))
    with pytest.raises(msgspec.ValidationError):
        messages.decode_from_agent(messages.encode(FINISHED))


@pytest.mark.parametrize("fields", [{"generation": "four"}, {"generation": 1.5}, {}, {"generation": None}])
def test_a_field_of_the_wrong_type_is_refused(fields: dict[str, object]) -> None:
    sound = msgspec.to_builtins(FINISHED)
    assert messages.decode_from_worker(msgspec.msgpack.encode(sound)) == FINISHED
    del sound["generation"]
    with pytest.raises(msgspec.ValidationError):
        messages.decode_from_worker(msgspec.msgpack.encode({**sound, **fields}))


@pytest.mark.parametrize("kind", [events.MemberLost, events.HostSilent, events.StopRequested, events.Tick])
def test_a_worker_cannot_tell_what_only_others_can_know(kind: type[events.Event]) -> None:
    with pytest.raises(msgspec.ValidationError, match="Invalid value"):
        messages.decode_from_worker(msgspec.msgpack.encode({"type": kind.__name__, "at": 0.0, "member": "m-0"}))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused_and_nothing_worse(noise: bytes) -> None:
    try:
        message = messages.decode_from_worker(noise)
    except (msgspec.MsgspecError, ValueError):
        return
    assert isinstance(message, FROM_WORKER)


def through_a_socket(*sent: bytes) -> list[bytes | None]:
    """What `receive` makes of these bytes, frame by frame, until the end or a refusal."""
    here, there = socket.socketpair()
    with here, there:

        def send() -> None:
            for part in sent:
                here.sendall(part)
            here.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        found: list[bytes | None] = []
        try:
            while not found or found[-1] is not None:
                found.append(framing.receive(there))
        finally:
            while there.recv(65536):
                pass
            sender.join()
        return found


@settings(deadline=None, max_examples=30)
@given(st.lists(st.binary(max_size=3000), max_size=5), st.integers(min_value=1, max_value=700))
def test_frames_arrive_whole_however_they_are_cut(payloads: list[bytes], size: int) -> None:
    stream = b"".join(framing.frame(payload) for payload in payloads)
    cut = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert through_a_socket(*cut) == [*payloads, None]


def test_a_frame_that_is_cut_off_counts_as_the_end() -> None:
    assert through_a_socket(framing.frame(b"whole"), framing.frame(b"torn off")[:-2]) == [b"whole", None]


def test_the_largest_frame_arrives_and_a_larger_one_is_refused_before_it_is_read() -> None:
    largest = bytes(framing.LIMIT)
    assert through_a_socket(framing.frame(largest)) == [largest, None]
    with pytest.raises(WireError, match="over the limit"):
        framing.frame(bytes(framing.LIMIT + 1))
    with pytest.raises(WireError, match="over the limit"):
        through_a_socket(struct.pack(">I", framing.LIMIT + 1), b"never mind")


def test_a_closed_socket_is_the_end() -> None:
    here, there = socket.socketpair()
    here.close()
    there.close()
    assert framing.receive(there) is None
