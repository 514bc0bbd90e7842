"""Waiting for something to become true in a loop, with a limit and a sentence for when it does not."""

import asyncio
import time
from collections.abc import Callable

from understudy_testkit.faults.assertions import NotProven


async def until(true: Callable[[], bool], what: str, seconds: float = 60.0) -> float:
    """Returns how long it took. Raises `NotProven`."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > seconds:
            raise NotProven(f"waited {seconds:g} s for: {what}")
        await asyncio.sleep(0.02)
    return time.monotonic() - began
