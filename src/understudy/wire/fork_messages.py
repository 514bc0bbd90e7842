"""What an agent and its fork server say to each other: one packet each, over a socket pair that no other process
holds."""

import msgspec

LIMIT = 1 << 20
"""Bytes of one packet; an environment that is larger is not sent, and the process is started without the fork
server."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Everything heavy is loaded. `unfit`: why a process that is forked here could not be like one that is started."""

    unfit: str | None = None


class Fork(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Fork a worker with this environment. With it come two descriptors: its stdout and its stderr."""

    number: int
    agent: int  # the process that adopts the worker
    environment: dict[str, str]


class Forked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Said by the worker itself, once it is a child of the agent in a session of its own."""

    number: int
    pid: int


_from_fork_server: msgspec.json.Decoder[Ready | Forked] = msgspec.json.Decoder(Ready | Forked)
_from_agent = msgspec.json.Decoder(Fork)


def encode(packet: Ready | Fork | Forked) -> bytes:
    return msgspec.json.encode(packet)


def decode_from_fork_server(data: bytes) -> Ready | Forked:
    return _from_fork_server.decode(data)


def decode_from_agent(data: bytes) -> Fork:
    return _from_agent.decode(data)
