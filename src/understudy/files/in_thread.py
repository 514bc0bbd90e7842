"""Disk I/O that may block for ever, for a program that must not: each call in a daemon thread of its own.

The threads of `asyncio.to_thread` are waited for at the end of the program; these are not.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

_Answer = TypeVar("_Answer")


def start_in_thread(call: Callable[[], _Answer]) -> "asyncio.Future[_Answer]":
    """The call goes on even if the future is cancelled."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Answer] = loop.create_future()

    def tell(answer: _Answer | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(answer)  # type: ignore[arg-type]

    def run() -> None:
        answer: _Answer | None = None
        failed: BaseException | None = None
        try:
            answer = call()
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the program has ended meanwhile
            loop.call_soon_threadsafe(tell, answer, failed)

    threading.Thread(target=run, name="understudy-shared-folder", daemon=True).start()
    return future


async def answer_within(seconds: float, call: Callable[[], _Answer]) -> _Answer:
    """TimeoutError after so long. Unlike `asyncio.wait_for` (of Python 3.11) it never swallows the cancelling of the
    task that asks, not even when the answer comes at the same moment."""
    future = start_in_thread(call)
    try:
        await asyncio.wait((future,), timeout=seconds)
        if not future.done():
            raise TimeoutError
        return future.result()
    finally:
        future.cancel()
