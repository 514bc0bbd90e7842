"""Reads files of a running process again from time to time, so that what is replaced there counts without a restart.

Reading happens in a thread of its own, because a disk may not answer. Everything else happens in the loop.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from understudy.errors import SettingsError

LOOK_EVERY = 10.0  # seconds
_Content = TypeVar("_Content")


class Renewable(Protocol):
    """What was read from files. `present` is another object once there are new ones. `title`: what it is, in the
    plural. `effect`: what follows from new ones."""

    @property
    def present(self) -> object: ...

    @property
    def title(self) -> str: ...

    @property
    def effect(self) -> str: ...

    def read_again(self) -> bool:
        """Raises `SettingsError` when they cannot be used, and those before stay in use."""


class Reread(Generic[_Content]):
    """The content of one file. `read`: looks into it again; None: it came from elsewhere and cannot change."""

    def __init__(self, present: _Content, read: Callable[[], _Content] | None = None) -> None:
        self.present, self._read = present, read

    def read_again(self) -> bool:
        """True if there is another one. Raises `SettingsError` when it cannot be used, and the one before stays."""
        found = self.present if self._read is None else self._read()
        if found == self.present:
            return False
        self.present = found
        return True


class RereadingWatch:
    """`say`: told of new ones; `warn`: of what cannot be used."""

    def __init__(
        self,
        watched: Renewable,
        say: Callable[[str], None],
        warn: Callable[[str], None] | None = None,
        *,
        look_every: float = LOOK_EVERY,
    ) -> None:
        self._watched, self._look_every = watched, look_every
        self._say, self._say_warning = say, warn or say
        self._known = watched.present
        self._trouble, self._before, self._said = "", "", ""  # of the last reading, of the one before; what was said

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        self.look_at_the_clock()
        task = asyncio.get_running_loop().create_task(self._keep_looking())
        try:
            yield
        finally:
            task.cancel()

    async def _keep_looking(self) -> None:
        reading: threading.Thread | None = None
        while True:
            await asyncio.sleep(self._look_every)
            if reading is None or not reading.is_alive():  # a disk that does not answer is asked once
                self.tell()
                reading = threading.Thread(target=self.read, name="understudy-rereading", daemon=True)
                reading.start()
            self.look_at_the_clock()

    def read(self) -> None:
        """In a thread."""
        try:
            self._watched.read_again()
            self._trouble = ""
        except SettingsError as error:
            self._trouble = str(error)

    def tell(self) -> None:
        """What the last reading found. What is wrong is said when it was so twice: files may be just being replaced."""
        if self._watched.present is not self._known:
            self._known = self._watched.present
            self.on_renewal()
            self._say(f"{self._watched.title} are new ones; {self._watched.effect}")
        trouble, before = self._trouble, self._before
        self._before = trouble
        if trouble == before and trouble != self._said:
            self._said = trouble
            if trouble:
                self._say_warning(f"{trouble}; those that were read before stay in use")

    def on_renewal(self) -> None:
        return

    def look_at_the_clock(self) -> None:
        """At the start and at each look: for what ends by itself."""
