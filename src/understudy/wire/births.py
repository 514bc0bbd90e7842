"""What an agent and its nursery say to each other: one packet each, over a socket pair that nobody else holds."""

import msgspec

LIMIT = 1 << 20
"""Bytes of one packet; an environment that is larger is not sent, and the process is started without the nursery."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Everything heavy is loaded. `unfit`: why a process that is forked here could not be like one that is started."""

    unfit: str | None = None


class Birth(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Fork a worker with this environment. With it come two descriptors: its stdout and its stderr."""

    number: int
    agent: int  # the process that adopts the worker
    environment: dict[str, str]


class Born(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Said by the worker itself, once it is a child of the agent in a session of its own."""

    number: int
    pid: int


_from_nursery: msgspec.json.Decoder[Ready | Born] = msgspec.json.Decoder(Ready | Born)
_from_agent = msgspec.json.Decoder(Birth)


def encode(packet: Ready | Birth | Born) -> bytes:
    return msgspec.json.encode(packet)


def decode_from_nursery(data: bytes) -> Ready | Born:
    return _from_nursery.decode(data)


def decode_from_agent(data: bytes) -> Birth:
    return _from_agent.decode(data)
