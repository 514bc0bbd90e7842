"""Looks after what a running process was given: reads certificates and tokens again when they are renewed, and warns
before certificates end.
"""

import contextlib
import datetime
import shlex
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from understudy.files.rereading import LOOK_EVERY, Renewable, RereadingWatch
from understudy.wire.certificates import Certificates

_DAY = 86400.0
WARN_BEFORE = 7 * _DAY
UNKNOWN = "when the certificates end is not known: pip install 'understudy[hosts]' brings what can tell"
_Result = TypeVar("_Result")


async def watched(
    job: Coroutine[Any, Any, _Result],
    given: Iterable[Renewable | None],
    say: Callable[[str], None],
    warn: Callable[[str], None] | None = None,
) -> _Result:
    """Does `job` while what it was given is looked after."""
    with contextlib.ExitStack() as stack:
        for one in given:
            if isinstance(one, Certificates):
                stack.enter_context(RenewalWatch(one, say, warn).looking())
            elif one is not None:
                stack.enter_context(RereadingWatch(one, say, warn).looking())
        return await job


class RenewalWatch(RereadingWatch):
    """`wall`: the time of day, which certificates are about."""

    def __init__(
        self,
        certificates: Certificates,
        say: Callable[[str], None],
        warn: Callable[[str], None] | None = None,
        *,
        wall: Callable[[], float] = time.time,
        look_every: float = LOOK_EVERY,
    ) -> None:
        super().__init__(certificates, say, warn, look_every=look_every)
        self._certificates, self._wall = certificates, wall
        self._warn_next = 0.0
        self._unknown_said = False

    def on_renewal(self) -> None:
        self._warn_next = 0.0

    def look_at_the_clock(self) -> None:
        """Warns once a day."""
        now, ends = self._wall(), self._certificates.ends()
        if not ends and not self._unknown_said:
            self._unknown_said = True
            self._say(f"{self._certificates.folder}: {UNKNOWN}")
        if now < self._warn_next:
            return
        self._warn_next = now + _DAY
        for file, end in ends.items():
            if end - now < WARN_BEFORE:
                self._say_warning(warning(self._certificates, file, end, now))


def warning(certificates: Certificates, file: str, end: float, now: float) -> str:
    folder = certificates.folder
    when = f"ends in {_span(end - now)}" if end > now else f"ended {_span(now - end)} ago"
    then = (
        "from then on no connection can be made with it" if end > now else "no connection can be made with it any more"
    )
    command = shlex.join(["understudy", "certs", str(folder.absolute().parent), folder.absolute().name])
    made = f"; `{command} ...` with the names and roles of all parties makes a new set" if certificates.role else ""
    return (
        f"the certificate {folder / file} {when} ({day_of(end)}), and {then}. Renew it where it came "
        f"from{made}. New files are used without a restart"
    )


def day_of(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _span(seconds: float) -> str:
    return f"{seconds / _DAY:.0f} days" if seconds >= 2 * _DAY else f"{seconds / 3600:.0f} hours"
