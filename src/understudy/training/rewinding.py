"""A loader of the script's own that yields the items of a window again when the window runs again (`job.rewinding`).

The loader stays what it is, with its worker processes and what they have made ahead. The items that were handed out
since the last commit are kept, so that going back is a matter of counting. In a member that joins, the next epoch that
is begun is the one in which the rank was, and what it had used up of that is read and dropped; or is skipped, where
the loader can begin at a place, or knows its position (`positions`).

What the loader draws from the process's random streams is drawn from seeds that follow from the epoch (equally on all
ranks, for a sampler that shuffles) and from the place of the item in it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from understudy.training.positions import Positions

_END = object()
_NONE = -2  # no epoch

Seed = Callable[[int, int | None], None]
"""Seeds the random streams for an epoch as a whole (None), or for the item at a place of it."""

Begin = Callable[[int, int], Iterable[Any]]
"""The items of an epoch from a place on."""


class Rewinding:
    """Iterates over `loader`; everything else of it can be asked for as before."""

    def __init__(self, loader: Any, seed: Seed, begin: Begin | None = None, positions: Positions | None = None) -> None:
        """`positions`: of the same loader, whose `begin` is given."""
        self._loader, self._seed, self._begin, self._positions = loader, seed, begin, positions
        self._epoch, self._place = -1, 0  # of the item that is handed out next
        self._kept: deque[Any] = deque()  # items since `_first`
        self._first = 0
        self._since = (-1, 0)  # where the loader stood at the last commit
        self._resumed: tuple[int, int] | None = None  # where a member that has joined begins
        self._items: Iterator[Any] = iter(())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def begins_at(self) -> tuple[int, int]:
        """The next iteration: which epoch, and how many of its items are used up."""
        epoch, used_up = self._resumed or (self._epoch + 1, 0)
        return max(epoch, 0), used_up

    @property
    def is_ahead(self) -> bool:
        """Items were handed out since the last commit."""
        return self._since != (self._epoch, self._place)

    def __iter__(self) -> Iterator[Any]:
        self._epoch, used_up = self.begins_at
        self._resumed = None
        self._place, self._first = used_up, 0
        self._kept.clear()
        self._seed(self._epoch, None)
        self._items = iter(self._loader if self._begin is None else self._begin(self._epoch, used_up))
        for _ in range(used_up if self._begin is None else 0):
            self._read()
        self._kept.clear()
        self._first = used_up
        self._since = (self._epoch, used_up)
        return self._rest_of(self._epoch)

    def _rest_of(self, epoch: int) -> Iterator[Any]:
        while self._epoch == epoch:
            item = self._next()
            if item is _END:
                return
            yield item

    def _next(self) -> Any:
        while len(self._kept) <= self._place - self._first:
            if not self._read():
                return _END
        item = self._kept[self._place - self._first]
        self._place += 1
        self._seed(self._epoch, self._place)
        return item

    def _read(self) -> bool:
        self._seed(self._epoch, self._first + len(self._kept))
        item = next(self._items, _END)
        if item is not _END:
            self._kept.append(item)
        return item is not _END

    def committed(self) -> None:
        """No window that came before can run again."""
        while self._first < self._place and self._kept:
            self._kept.popleft()
            self._first += 1
        self._since = (self._epoch, self._place)
        if self._positions is not None and len(self._kept) == 0:
            self._positions.reached(self._epoch, self._place)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "place": self._place, "since": list(self._since)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """In the epoch that is being read: forwards or backwards in it. Else that one ends, and the next one that is
        begun is the one of the state, at its place."""
        epoch, used_up = state["since"]
        self._since = (epoch, used_up)
        if state["epoch"] == self._epoch:
            self._place = max(self._first, state["place"])
        else:
            self._epoch, self._resumed = _NONE, (state["epoch"], state["place"])

    def forget(self) -> None:
        """Of the rehearsal: no epoch is being read."""
        self._epoch = _NONE

    def go_to_last_commit(self) -> None:
        """For a member that joins, and whose loop reads what came after that by itself."""
        self._resumed = self._since
