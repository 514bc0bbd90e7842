"""Fetches the counters of this host's devices from an exporter, now and then, in a thread of its own.

Whatever the exporter does (it is away, slow, endless, talks nonsense), the agent goes on: a fetch has limits of time
and size, and trouble is said once.
"""

import asyncio
import time
import urllib.request
from collections.abc import Callable

from understudy.detection.device_health import Device, parse

_EVERY = 5.0  # seconds; the exporter itself looks at its devices every 30 by default
_TIMEOUT = 2.0
_SIZE_LIMIT = 8 * 1024 * 1024
_PART = 1 << 16


class DeviceMetrics:
    """`devices`: what the last fetch found, empty when it failed."""

    def __init__(self, url: str, say: Callable[[str], None], every: float = _EVERY) -> None:
        self.devices: tuple[Device, ...] = ()
        self._url, self._say, self._every = url, say, every
        self._failing = False

    async def keep_fetching(self) -> None:
        while True:
            await self.fetch_once()
            await asyncio.sleep(self._every)

    async def fetch_once(self) -> None:
        try:
            text = await asyncio.to_thread(_fetch, self._url)
            self.devices = parse(text)
        except Exception as error:  # whatever it is, training must not suffer from it
            self.devices = ()
            if not self._failing:
                self._say(f"no device metrics from {self._url}: {error}; trying again every {self._every:g} s")
            self._failing = True
            return
        if self._failing:
            self._say(f"device metrics come from {self._url} again: {len(self.devices)} devices")
        self._failing = False


def _fetch(url: str) -> str:
    """The time limit holds for the whole answer, also if that comes drop by drop."""
    deadline = time.monotonic() + _TIMEOUT
    parts = bytearray()
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
        while part := answer.read1(_PART):
            parts += part
            if len(parts) > _SIZE_LIMIT:
                raise ValueError(f"the answer is longer than {_SIZE_LIMIT} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the answer took longer than {_TIMEOUT:g} s")
    return parts.decode("utf-8", "replace")
