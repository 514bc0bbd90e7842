"""A host of the job that was broken into: it has a good certificate and the token, and says all that can be said.

Messages are made from their types: every kind, with some fields as they should be and others wrong in every way that
the type allows or does not allow; about the members, ranks and hosts of others most of all. Seeded, so that a message
that did harm can be sent again.
"""

import dataclasses
import enum
import random
import types
import typing
from collections.abc import Collection
from typing import Any

import msgspec

from understudy.errors import WireError
from understudy.protocol import events as ev
from understudy.protocol import requests
from understudy.wire import host_messages as wire
from understudy.wire.messages import Measured

_NUMBERS = (0, 1, 2, 3, 7, -1, 1000, 2**31, 2**53, 2**63 - 1, -(2**63))
_FLOATS = (0.0, 0.5, 3.0, -1.0, 1e300, 5e-324, float("nan"), float("inf"), float("-inf"), 86_400.0)
_GARBAGE: tuple[Any, ...] = (
    None,
    True,
    -1,
    1e300,
    "",
    "x" * 400,
    "\u202e\x00",
    b"\xff",
    [],
    {},
    [[[]]],
    {"type": "Kill"},
)
_TEXTS = ("", "why not", "x" * 300, "../../etc/passwd", "\x1b[2J", "null", "m-0")
_SAID = (Measured, wire.Bequeathed, wire.Advanced, wire.CertificateEnds)


def _is_event(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, ev.Event)


EVENTS = tuple(
    sorted(
        {kind for module in (ev, requests) for kind in vars(module).values() if _is_event(kind)},
        key=lambda kind: kind.__name__,
    )
)
"""Also those that a host may never tell."""


def must_be_refused(data: bytes, host: str, others: Collection[str]) -> bool:
    """Does this message of `host` end its line? `others`: members that live elsewhere."""
    try:
        message = wire.decode_from_host(data)
        if not isinstance(message, wire.Happened):
            left = isinstance(message, wire.Bequeathed) and not message.again and message.member in others
            return left or isinstance(message, wire.Attend | wire.Farewell)
        event = wire.to_event(message, 0.0)
    except WireError:
        return True
    sightings = getattr(event, "sightings", ())
    named = {sighting.member for sighting in sightings} if sightings else {getattr(event, "member", None)}
    return not named.isdisjoint(others) or getattr(event, "host", host) != host


class Insider:
    """`own`: members that live on its host. `others`: members and hosts of honest ones."""

    def __init__(self, seed: int, *, own: tuple[str, ...], others: tuple[str, ...], world: int) -> None:
        self._random = random.Random(seed)
        self._names = (*own, *others, "m-99", "no-such-name")
        self._world = world

    def message(self) -> bytes:
        """One that may be decoded or not."""
        if self._random.random() < 0.01:
            kind: Any = self._random.choice((wire.Farewell, wire.Attend, wire.Welcome))
        elif self._random.random() < 0.7:
            return self._happened()
        else:
            kind = self._random.choice(_SAID)
        return msgspec.msgpack.encode({"type": kind.__name__, **self._fields(typing.get_type_hints(kind))})

    def _happened(self) -> bytes:
        kind = self._random.choice(EVENTS)
        event = {"type": kind.__name__, **self._fields(typing.get_type_hints(kind))}
        ago = self._random.choice((None, None, 0.5, -1.0, 1e12, float("nan")))
        return msgspec.msgpack.encode({"type": "Happened", "event": event, "ago": ago})

    def _fields(self, hints: dict[str, Any]) -> dict[str, Any]:
        """Each is left out now and then, or of a wrong type; most are of the right type and mean nothing good."""
        made = {}
        for name, hint in hints.items():
            chance = self._random.random()
            if chance < 0.03:
                continue
            made[name] = self._random.choice(_GARBAGE) if chance < 0.08 else self._value(name, hint)
        return made

    def _value(self, name: str, hint: Any) -> Any:
        choose, origin = self._random.choice, typing.get_origin(hint)
        if name in ("member", "host"):
            return choose(self._names)
        if origin in (typing.Union, types.UnionType):
            return self._value(name, choose(typing.get_args(hint)))
        if origin is typing.Annotated:
            return self._value(name, typing.get_args(hint)[0])
        if origin in (tuple, list):
            inner = [part for part in typing.get_args(hint) if part is not Ellipsis]
            return [self._value("", choose(inner)) for _ in range(self._random.randrange(4))]
        if origin is dict:
            return {choose(_TEXTS): choose(_FLOATS) for _ in range(self._random.randrange(4))}
        return self._plain(hint)

    def _plain(self, hint: Any) -> Any:
        choose = self._random.choice
        if hint is type(None):
            return None
        if hint is bool:
            return choose((True, False))
        if hint is float:
            return choose(_FLOATS)
        if hint is bytes:
            return self._random.randbytes(self._random.randrange(64))
        if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, msgspec.Struct)):
            return self._fields(typing.get_type_hints(hint))
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return choose([*(one.value for one in hint), "no such thing"])
        supertype = getattr(hint, "__supertype__", hint)
        if supertype is int:
            return choose((*_NUMBERS, self._world, self._world - 1))
        return choose((*_TEXTS, *self._names))
