"""Attributes of torch that are replaced while the device is installed."""

from collections.abc import Callable
from typing import Any


class Patches:
    def __init__(self) -> None:
        self._before: list[tuple[Any, str, bool, Any]] = []

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """`make` is given what was there and returns what shall be."""
        self._before.append((owner, name, name in vars(owner), getattr(owner, name)))
        setattr(owner, name, make(getattr(owner, name)))

    def take_back(self) -> None:
        for owner, name, was_its_own, before in reversed(self._before):
            if was_its_own:
                setattr(owner, name, before)
            else:
                delattr(owner, name)  # it was inherited
        self._before.clear()
