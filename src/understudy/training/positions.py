"""Where a loader that knows its position stood a short while ago, so that a replacement need not read all of it again.

A loader with `state_dict` and `load_state_dict` (torchdata's StatefulDataLoader, and what is built on it) is asked for
its state when an epoch begins, and then again every `EVERY` items, once nothing that came before can run again. A
replacement puts the state back, and reads and drops the few items between it and its rank's place.

Carried along with the loop's other small state (`loop_state`). The caller, `rewinding`, knows the places.
"""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from understudy.state.encoding import pack, unpack

EVERY = 32
"""Items. A state of a stream of text holds what is left of the last one, which takes some time to write down."""


@runtime_checkable
class PositionedLoader(Protocol):
    """A loader that knows its position."""

    def __iter__(self) -> Iterator[Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


class Positions:
    """Of one loader: the newest state that is known, and at which item of which epoch that was."""

    def __init__(self, loader: PositionedLoader) -> None:
        self._loader = loader
        self._epoch, self._place, self._state = -1, 0, b""

    def begin(self, epoch: int, place: int) -> Iterator[Any]:
        """The items of that epoch from `place` on."""
        known = epoch == self._epoch
        if known:
            self._loader.load_state_dict(unpack(self._state))
        items = iter(self._loader)
        if not known:
            self._keep(epoch, 0)
        for _ in range(place - self._place):  # now: what they draw must not shift the streams of the next one
            next(items, None)
        return items

    def reached(self, epoch: int, place: int) -> None:
        """So many items were handed out, and are used up."""
        if epoch == self._epoch and place >= self._place + EVERY:
            self._keep(epoch, place)

    def _keep(self, epoch: int, place: int) -> None:
        self._epoch, self._place = epoch, place
        self._state = pack(self._loader.state_dict(), "the loader's state_dict()")

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "place": self._place, "state": self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch, self._place, self._state = state["epoch"], state["place"], state["state"]
