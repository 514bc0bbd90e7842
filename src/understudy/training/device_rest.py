"""A device that runs behind its host, after a fault: its queue comes to rest before anything is said about this member.

    contact is lost ─▶ every communicator is broken ─▶ the queue drains ─▶ the context is tried ─▶ put back, report

What was queued behind a collective that is broken off runs now, and what it leaves behind counts as nothing: this rank
has not arrived (`groups.device_fence`). A queue that does not drain, and a context in which nothing can run any more,
end the process, with an exit code of its own: another process takes the rank.

On a device that does not run behind nothing of this is needed, and nothing is done.
"""

import os
import sys
from collections.abc import Callable
from typing import NoReturn, Protocol

from understudy.devices import in_use
from understudy.devices.contract import Device
from understudy.errors import DeviceLost
from understudy.foundation.exits import DEVICE_LOST

DRAIN_WITHIN, PROBE_WITHIN = 10.0, 5.0
"""Seconds from the break of the communicators until the queue is empty, and for the probe. Guesses that no device has
confirmed: a kernel that a break frees needs milliseconds, but there may be a whole step of others behind it."""


class Rest(Protocol):
    def come(self) -> None:
        """Contact is lost. Returns when nothing is queued any more."""
        ...

    def look_at(self, error: BaseException) -> None:
        """An error came out of the body. Does not return if it says that the context is lost."""
        ...


class NothingQueued:
    def come(self) -> None:
        return

    def look_at(self, error: BaseException) -> None:  # noqa: ARG002
        return


class DeviceRest:
    """`break_all`: of the communicators. Both may be called again and again."""

    def __init__(
        self, device: Device, break_all: Callable[[], object], end: Callable[[str], NoReturn] | None = None
    ) -> None:
        self._device, self._break_all = device, break_all
        self._end = end or end_process

    def come(self) -> None:
        self._break_all()
        try:
            self._device.drain(DRAIN_WITHIN)
            self._device.probe(PROBE_WITHIN)
        except DeviceLost as lost:
            self._end(str(lost))

    def look_at(self, error: BaseException) -> None:
        if isinstance(error, DeviceLost) or self._device.is_lost(error):
            self._end(f"{type(error).__name__}: {error}")

    def settle(self) -> None:
        """What the device writes is about to be read. Contact may be well, and then another rank may be slow: so
        there is no deadline. If it is lost, the control thread breaks the communicators."""
        try:
            self._device.drain(None)
        except DeviceLost as lost:
            self._end(str(lost))


def rest_of(device: Device, break_at_once: Callable[[], object] | None) -> Rest:
    """`break_at_once`: what frees the device."""
    if not device.asynchronous:
        return NothingQueued()
    rest = DeviceRest(device, break_at_once or _nothing)
    in_use.settle_by(rest.settle)
    return rest


def _nothing() -> None:
    return


def end_process(why: str) -> NoReturn:
    """At once: to tear down what is built on a device that is lost could take for ever."""
    print(
        f"understudy: the device of this process cannot be used any more ({why.strip()}); the process ends, so that "
        "another one can take over its rank",
        file=sys.stderr,
        flush=True,
    )
    os._exit(DEVICE_LOST)
