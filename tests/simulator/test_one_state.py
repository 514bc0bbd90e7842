"""The state of the machine is one value: every field of it is copied, written, read and handed on as its type says.

One state is made from the types, so that every field has a content of its own, and a new field is tested without a line
here; the others come from simulated histories of several kinds.
"""

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from understudy.foundation.copying import copied
from understudy.protocol import events as ev
from understudy.protocol.commands import Command
from understudy.protocol.job import JobMachine
from understudy.protocol.state import State
from understudy.protocol.succession import FORGOTTEN, MOMENT, for_successor, from_predecessor
from understudy_testkit.simulator import ordinary_scenarios as ordinary
from understudy_testkit.simulator.active_scenarios import play_with_flips, play_with_moves, play_with_undrains
from understudy_testkit.simulator.cluster_scenarios import play_on_cluster
from understudy_testkit.simulator.ladder_scenarios import (
    play_degraded,
    play_on_probation,
    play_with_lost_hosts_and_peer_memory,
    play_with_poison,
)

GAMES: tuple[Callable[[int], object], ...] = (
    play_on_cluster,
    play_with_moves,
    play_with_undrains,
    play_with_flips,
    play_degraded,
    play_with_poison,
    play_on_probation,
    play_with_lost_hosts_and_peer_memory,
    ordinary.play_transient_errors,
    ordinary.play_slow,
)
SEEDS = 3


@pytest.fixture(scope="module")
def states() -> list[State]:
    """The one that is made, and some of every history."""
    found: list[State] = [filled(State)]
    real = JobMachine.handle

    def handle(self: JobMachine, event: ev.Event) -> tuple[Command, ...]:
        commands = real(self, event)
        if len(commands) > 1:
            found.append(copied(self.state))
        return commands

    JobMachine.handle = handle  # type: ignore[method-assign]
    try:
        for game in GAMES:
            for seed in range(SEEDS):
                game(seed)
    finally:
        JobMachine.handle = real  # type: ignore[method-assign]
    return found


def fields_of(value: Any, where: str) -> Iterator[tuple[str, "dataclasses.Field[Any]", Any]]:
    for field in dataclasses.fields(value):
        content = getattr(value, field.name)
        yield f"{where}.{field.name}", field, content
        parts = content.values() if isinstance(content, dict) else (content,)
        for part in parts:
            if dataclasses.is_dataclass(part) and not type(part).__dataclass_params__.frozen:  # type: ignore[union-attr]
                yield from fields_of(part, f"{where}.{field.name}")


def default_of(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def filled(kind: Any) -> Any:
    """A value of this type in which nothing is as it is at first."""
    while hasattr(kind, "__supertype__"):  # a NewType
        kind = kind.__supertype__
    if kind is None or kind is type(None):
        return None
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return filled(next(part for part in arguments if part is not type(None)))
    if origin is dict:
        return {filled(arguments[0]): filled(arguments[1])}
    if origin is tuple:
        return tuple(filled(part) for part in arguments if part is not Ellipsis)
    if origin is not None:
        return origin([filled(arguments[0])])
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)):
        return kind(**{name: filled(hint) for name, hint in typing.get_type_hints(kind).items()})
    if issubclass(kind, enum.Enum):
        return list(kind)[-1]
    return {bool: True, int: 7, float: 7.5, str: "seven", bytes: b"7"}[kind]


def test_the_state_that_is_made_has_a_content_of_its_own_everywhere() -> None:
    as_at_first = [where for where, field, content in fields_of(filled(State), "state") if content == default_of(field)]
    assert as_at_first == ["state.hosts.by_id.present"]  # true at first


def test_a_copy_is_equal_and_independent(states: list[State]) -> None:
    for state in states:
        copy = copied(state)
        assert copy == state
        assert _changeable(copy).isdisjoint(_changeable(state))


def _changeable(value: Any) -> set[int]:
    found = {id(value)} if isinstance(value, dict | set | list) or dataclasses.is_dataclass(value) else set()
    if dataclasses.is_dataclass(value):
        if type(value).__dataclass_params__.frozen:  # type: ignore[union-attr]
            return set()
        parts: Any = [getattr(value, field.name) for field in dataclasses.fields(value)]
    else:
        parts = value.values() if isinstance(value, dict) else ()
    return found.union(*(_changeable(part) for part in parts))


def test_every_state_can_be_written_and_read(states: list[State]) -> None:
    for state in states:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State) == state


def test_a_successor_gets_every_field_by_its_rule(states: list[State]) -> None:
    """What was kept is there, moments are on its own clock, and nothing is there that was to be forgotten."""
    for state in states:
        at = state.now
        left = msgspec.msgpack.decode(msgspec.msgpack.encode(for_successor(state, at)), type=State)
        found = from_predecessor(left, at + 1000.0)
        kinds = set()
        pairs = zip(_plain(state), _plain(found), strict=True)
        for (where, field, before), (_, _, after) in pairs:
            rule = field.metadata.get("successor", "kept")
            kinds.add(rule)
            if rule == FORGOTTEN["successor"]:
                assert after == default_of(field), where
            elif rule == MOMENT["successor"]:
                assert after == pytest.approx(max(before, at) + 1000.0), where
            else:
                assert after == before, where
        assert kinds == {"kept", FORGOTTEN["successor"], MOMENT["successor"]}


def _plain(state: State) -> list[tuple[str, "dataclasses.Field[Any]", Any]]:
    """Fields that hold no further part of the state, and those of parts that are kept."""
    found = []
    for where, field, content in fields_of(state, "state"):
        parts = content.values() if isinstance(content, dict) else (content,)
        holds_parts = any(
            dataclasses.is_dataclass(part) and not type(part).__dataclass_params__.frozen  # type: ignore[union-attr]
            for part in parts
        )
        if not holds_parts and not where.startswith("state.watchdog.sightings."):
            found.append((where, field, content))
    return found


def test_types_that_cannot_be_copied_are_named() -> None:
    @dataclasses.dataclass
    class Wrong:
        what: typing.Callable[[], None]

    with pytest.raises(TypeError, match="it is not known how to copy a"):
        copied(Wrong(print))
