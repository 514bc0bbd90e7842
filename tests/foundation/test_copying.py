"""Copies by type, and by value where translated code does not say the type."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from understudy.foundation.copying import copied


@dataclass(slots=True)
class Inner:
    count: int = 0


@dataclass(slots=True)
class Described:
    inner: Inner = field(default_factory=Inner)
    by_name: dict[str, Inner] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    perhaps: Inner | None = None
    pair: tuple[int, int] = (1, 2)


@dataclass(slots=True)
class Erased:
    """As mypyc describes the fields of `Described`."""

    __mypyc_attrs__: ClassVar[tuple[str, ...]] = ()
    inner: Inner = field(default_factory=Inner)
    by_name: dict = field(default_factory=dict)  # type: ignore[type-arg]
    names: set = field(default_factory=set)  # type: ignore[type-arg]
    perhaps: type = None  # type: ignore[assignment]
    pair: tuple = (1, 2)  # type: ignore[type-arg]


@pytest.mark.parametrize("kind", [Described, Erased])
def test_what_can_change_is_copied_and_what_cannot_is_shared(kind: Any) -> None:
    value = kind(Inner(1), {"a": Inner(2)}, {"x"}, Inner(3))
    twin = copied(value)
    assert twin == value and twin.pair is value.pair
    value.inner.count, value.by_name["a"].count, value.perhaps.count = 7, 7, 7
    value.names.add("y")
    assert twin == kind(Inner(1), {"a": Inner(2)}, {"x"}, Inner(3))
    assert copied(kind()) == kind()


def test_a_field_that_does_not_say_what_is_in_it_is_an_error() -> None:
    @dataclass(slots=True)
    class Vague:
        by_name: dict = field(default_factory=dict)  # type: ignore[type-arg]

    with pytest.raises(TypeError, match="not known how to copy"):
        copied(Vague())
