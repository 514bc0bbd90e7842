"""Ranks of one group in one process, each with a device, a queue and a backend of its own."""

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import HashStore, ReconfigureOptions, Store

from understudy_testkit.queued_device.backend import QueuedBackend
from understudy_testkit.queued_device.device import QueuedDevice

SOON = 10.0  # seconds for what takes milliseconds on a machine that is not busy
STANDS = 0.3  # seconds after which a queue that has not gone on will not
TIMEOUT = timedelta(seconds=30)


class RankOfOne:
    def __init__(self, store: Store, rank: int, size: int, contagion: bool, reconfigurable: bool = True) -> None:
        self.device = QueuedDevice(contagion, watchdog_every=0.05)
        self.backend = QueuedBackend(self.device, store, rank, size, TIMEOUT, reconfigurable)

    def full(self, number: float, size: int = 4) -> torch.Tensor:
        with self.device.used():
            return torch.full((size,), number)

    def sum(self, tensor: torch.Tensor) -> Any:
        with self.device.used():
            return self.backend.allreduce([tensor])

    def die(self) -> None:
        """What peers see of a process that was killed: its connections are closed, and it says nothing."""
        communicator = self.backend._communicator
        assert communicator is not None
        communicator._gloo.leave()


class World:
    def __init__(self, size: int = 2, contagion: bool = True) -> None:
        self.store = HashStore()
        self.ranks = [RankOfOne(self.store, rank, size, contagion) for rank in range(size)]

    def form(self, unique: int | None = None) -> None:
        unique = secrets.randbits(40) if unique is None else unique
        in_all([partial(rank.backend.reconfigure, options) for rank, options in self.options(unique)])

    def options(self, unique: int, timeout: timedelta = TIMEOUT) -> Iterator[tuple[RankOfOne, ReconfigureOptions]]:
        handles = [rank.backend.get_reconfigure_handle() for rank in self.ranks]
        for rank in self.ranks:
            options = ReconfigureOptions()
            options.uuid, options.handles, options.timeout = unique, handles, timeout
            yield rank, options


def in_all(calls: Sequence[Any]) -> None:
    """Each in a thread of its own; the first error is raised."""
    troubles: list[BaseException] = []

    def run(call: Any) -> None:
        try:
            call()
        except BaseException as trouble:
            troubles.append(trouble)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if troubles:
        raise troubles[0]


@contextmanager
def world(size: int = 2, contagion: bool = True) -> Iterator[World]:
    made = World(size, contagion)
    try:
        made.form()
        yield made
    finally:
        for rank in made.ranks:
            rank.backend.shutdown()
            rank.device.close()


def every_byte(tensor: torch.Tensor, pattern: int) -> bool:
    return bool((tensor.view(torch.uint8) == pattern).all())
