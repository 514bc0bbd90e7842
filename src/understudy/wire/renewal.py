"""Looks after the certificates of a running process: reads them again when they are renewed, and warns before they end.

Reading happens in a thread of its own, because the folder may be on a disk that does not answer. Everything else
happens in the loop.
"""

import asyncio
import contextlib
import datetime
import shlex
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from understudy.errors import SettingsError
from understudy.wire.certificates import Certificates

_LOOK_EVERY = 10.0  # seconds
_DAY = 86400.0
WARN_BEFORE = 7 * _DAY
UNKNOWN = "when the certificates end is not known: pip install 'understudy[hosts]' brings what can tell"
_Result = TypeVar("_Result")


async def watched(
    job: Coroutine[Any, Any, _Result], certificates: Certificates | None, say: Callable[[str], None]
) -> _Result:
    """Does `job` while its certificates are looked after."""
    with contextlib.nullcontext() if certificates is None else RenewalWatch(certificates, say).looking():
        return await job


class RenewalWatch:
    """`wall`: the time of day, which certificates are about."""

    def __init__(
        self,
        certificates: Certificates,
        say: Callable[[str], None],
        *,
        wall: Callable[[], float] = time.time,
        look_every: float = _LOOK_EVERY,
    ) -> None:
        self._certificates, self._say = certificates, say
        self._wall, self._look_every = wall, look_every
        self._warn_next = 0.0
        self._known = certificates.present
        self._trouble, self._before, self._said = "", "", ""  # of the last reading, of the one before; what was said

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Warns at once, and then looks from time to time."""
        if not self._certificates.ends():
            self._say(f"{self._certificates.folder}: {UNKNOWN}")
        self.warn()
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
                reading = threading.Thread(target=self.read, name="understudy-certificates", daemon=True)
                reading.start()
            self.warn()

    def read(self) -> None:
        """In a thread."""
        try:
            self._certificates.read_again()
            self._trouble = ""
        except SettingsError as error:
            self._trouble = str(error)

    def tell(self) -> None:
        """What the last reading found. What is wrong is said when it was so twice: files may be just being replaced."""
        if self._certificates.present is not self._known:
            self._known, self._warn_next = self._certificates.present, 0.0
            self._say(f"the certificates in {self._certificates.folder} are new ones; new connections use them")
        trouble, before = self._trouble, self._before
        self._before = trouble
        if trouble == before and trouble != self._said:
            self._said = trouble
            if trouble:
                self._say(f"{trouble}; the certificates that were read before stay in use")

    def warn(self) -> None:
        """Once a day."""
        now = self._wall()
        if now < self._warn_next:
            return
        self._warn_next = now + _DAY
        for file, end in self._certificates.ends().items():
            if end - now < WARN_BEFORE:
                self._say(self._warning(file, end, now))

    def _warning(self, file: str, end: float, now: float) -> str:
        folder = self._certificates.folder
        when = f"ends in {_span(end - now)}" if end > now else f"ended {_span(now - end)} ago"
        then = "from then on nobody can connect" if end > now else "nobody can connect any more"
        command = shlex.join(["understudy", "certs", str(folder.absolute().parent), folder.absolute().name])
        return (
            f"the certificate {folder / file} {when} ({day_of(end)}), and {then}. Renew it where it came from; "
            f"`{command} ...` with the names of all parties makes a new set. New files are used without a restart"
        )


def day_of(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _span(seconds: float) -> str:
    return f"{seconds / _DAY:.0f} days" if seconds >= 2 * _DAY else f"{seconds / 3600:.0f} hours"
