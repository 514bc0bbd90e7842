"""The queue of the emulated device: one thread that does one thing after another, in the order in which they came.

It knows no tensors and no groups, only calls. What the host adds is not done when `add` returns. An event says how far
the queue has come. An error of the queue is final, as a context of CUDA that has failed: nothing after it is done, and
each look at the queue raises it.

A test can hold the queue, so that the host runs ahead of it, and slow it down.
"""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator

LAUNCHES = 4096  # a host that is so far ahead waits, as on a GPU (where it is about a thousand)


class QueueStands(TimeoutError):
    """The queue has not come so far before the deadline."""


class DeviceFault(RuntimeError):
    """Something in the queue has failed. The device of this process can be used no more."""


class Event:
    """A place in the queue."""

    def __init__(self, stream: "Stream") -> None:
        self._stream = stream
        self._reached = threading.Event()

    def query(self) -> bool:
        """Has the queue come so far? Never waits."""
        self._stream.raise_fault()
        return self._reached.is_set()

    def synchronize(self, deadline: float | None = None) -> None:
        """Waits, at most `deadline` seconds. None: as long as it takes, as a synchronisation of CUDA."""
        if not self._reached.wait(deadline):
            raise QueueStands(f"the queue has not reached an event within {deadline:g} s")
        self._stream.raise_fault()

    def reach(self) -> None:
        self._reached.set()


class Stream:
    """`surroundings`: what the queue's thread is in as long as it lives."""

    def __init__(
        self, surroundings: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    ) -> None:
        self._surroundings = surroundings
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._gate = threading.Event()
        self._gate.set()
        self._room = threading.Semaphore(LAUNCHES)
        self._pause = 0.0
        self._alarms: list[tuple[int, Callable[[], None]]] = []
        self._in_step = 0
        self._fault: BaseException | None = None
        self._home = os.getpid()
        self.added = 0
        self.done = 0
        self._thread = threading.Thread(target=self._serve, name="queued-device", daemon=True)
        self._thread.start()

    # -- the host's side ----------------------------------------------------------------------------------------------

    def add(self, call: Callable[[], None]) -> None:
        if self.is_elsewhere:
            call()
            return
        self._room.acquire()
        self.added += 1
        self._waiting.put(call)
        if self._in_step:
            self.drain()

    @property
    def is_elsewhere(self) -> bool:
        """A fork (a worker of a loader) has no queue: what it does is done at once."""
        return os.getpid() != self._home

    def record(self) -> Event:
        event = Event(self)
        if self.is_elsewhere:
            event.reach()
        else:
            self._waiting.put(event.reach)
        return event

    def drain(self, deadline: float | None = None) -> None:
        """Waits until all that was added so far is done."""
        if threading.current_thread() is self._thread:
            return  # the queue itself is up to date
        self.record().synchronize(deadline)

    @contextlib.contextmanager
    def in_step(self) -> Iterator[None]:
        """Host and queue go in step inside: what is added is done when `add` returns. (Where nothing is added, nothing
        is waited for.)"""
        self._in_step += 1
        try:
            yield
        finally:
            self._in_step -= 1

    @property
    def behind(self) -> int:
        """How many operations have been added and are not done."""
        return self.added - self.done

    def raise_fault(self) -> None:
        if self._fault is not None:
            raise DeviceFault(f"an operation in the queue has failed: {self._fault}") from self._fault

    # -- for tests ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The queue stands still inside. (What it has begun is finished.)"""
        self._gate.clear()
        try:
            yield
        finally:
            self._gate.set()

    @contextlib.contextmanager
    def slowed(self, seconds: float) -> Iterator[None]:
        """Before each operation the queue sleeps so long."""
        before = self._pause
        self.slow_down(seconds)
        try:
            yield
        finally:
            self.slow_down(before)

    def slow_down(self, seconds: float) -> None:
        """From now on."""
        self._pause = seconds

    def call_after(self, count: int, call: Callable[[], None]) -> None:
        """In the queue's thread, once so many more operations are done."""
        self._alarms.append((self.done + count, call))

    def stop(self, deadline: float = 1.0) -> None:
        """The end of the process is near: the thread shall not be in the middle of something."""
        self._gate.set()
        self._waiting.put(None)
        if not self.is_elsewhere:
            self._thread.join(deadline)

    # -- the queue's side ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        with self._surroundings():
            while (call := self._waiting.get()) is not None:
                self._gate.wait()
                self._do(call)
                del call  # it holds tensors

    def _do(self, call: Callable[[], None]) -> None:
        if isinstance(getattr(call, "__self__", None), Event):
            call()
            return
        if self._pause:
            time.sleep(self._pause)
        try:
            if self._fault is None:
                call()
        except BaseException as fault:
            self._fault = fault
        self.done += 1
        self._room.release()
        while self._alarms and self._alarms[0][0] <= self.done:
            self._alarms.pop(0)[1]()
