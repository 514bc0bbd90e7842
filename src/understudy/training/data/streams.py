"""Iterable datasets of Hugging Face's `datasets`, whose states do not hold all that their order depends on.

An `IterableDataset` has a `state_dict`, but what is in a shuffle buffer is not in it; and a state that was put back
stays: the next epoch begins in the middle again, unless it has another number. So here an epoch has its number
(`set_epoch` is called), and a place in it is a count of items. A replacement puts the state back only where nothing is
shuffled in a buffer; elsewhere it reads its epoch again from the begin, and drops what was used up: that order is a
function of seed, epoch and place.

Knows nothing of `datasets` but the names of attributes. An unknown kind is read again from the begin.
"""

from collections.abc import Iterator
from typing import Any


def stream_of(loader: Any) -> Any:
    """The iterable dataset of Hugging Face's that `loader` reads, or is. None: it is none."""
    for thing in (loader, getattr(loader, "dataset", None)):
        if hasattr(thing, "_ex_iterable") and callable(getattr(thing, "set_epoch", None)):
            return thing
    return None


def is_read_again(loader: Any) -> bool:
    """Of a loader whose epochs are not counted here: is a state of its stream not enough? Without worker processes one
    that was put back would begin the next epoch too."""
    stream = stream_of(loader)
    return stream is not None and (not getattr(loader, "num_workers", 0) or _has_buffer(stream._ex_iterable))


def _has_buffer(examples: Any) -> bool:
    """What examples come from, down to the files."""
    inner = getattr(examples, "ex_iterable", None)
    below = [*getattr(examples, "ex_iterables", []), *([] if inner is None else [inner])]
    return hasattr(examples, "buffer_size") or any(_has_buffer(one) for one in below)


class CountedStream:
    """A loader that knows its position: of `loader`, over a stream or the stream itself. An epoch that ends is followed
    by the one with the next number."""

    def __init__(self, loader: Any) -> None:
        self._loader, self._stream = loader, stream_of(loader)
        self._has_state = hasattr(loader, "state_dict") and not _has_buffer(self._stream._ex_iterable)
        self._epoch, self._place = -1, 0  # of the item that comes next; -1: none has begun
        self._resumed: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        resumed, self._resumed = self._resumed, None
        begun = resumed or {"epoch": self._epoch + 1, "place": 0, "state": None}
        self._epoch, self._place = max(begun["epoch"], 0), begun["place"]
        self._stream.set_epoch(self._epoch)
        if begun["state"] is not None:
            self._loader.load_state_dict(begun["state"])
        items = iter(self._loader)
        for _ in range(self._place if begun["state"] is None else 0):
            next(items, None)
        return self._counted(items)

    def _counted(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self._place += 1
            yield item

    def state_dict(self) -> dict[str, Any]:
        if self._resumed is not None:
            return self._resumed
        state = self._loader.state_dict() if self._has_state and self._place else None
        return {"epoch": self._epoch, "place": self._place, "state": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._resumed = state
