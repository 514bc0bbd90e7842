"""How a rank learns that a peer has aborted a communicator. NCCL has no such thing: its kernels feel it in the memory
that they share. Here the ranks say it in the group's store, together with how far they had come.

A rank that has finished an operation has sent its part of it. So what peers receive in that operation is right,
whatever the rank does afterwards; in all later ones it may be anything.
"""

import contextlib
import json
import time
from collections import Counter
from dataclasses import dataclass, field

from torch._C._distributed_c10d import Store

_LOOK_EVERY = 0.01  # seconds; each look is a question to the store per peer


@dataclass
class Progress:
    """How many operations of each kind are finished; messages by peer."""

    collectives: int = 0
    sent: Counter[int] = field(default_factory=Counter)
    received: Counter[int] = field(default_factory=Counter)

    def encode(self) -> str:
        return json.dumps([self.collectives, list(self.sent.items()), list(self.received.items())])

    @classmethod
    def decode(cls, text: bytes) -> "Progress":
        collectives, sent, received = json.loads(text)
        return cls(collectives, Counter(dict(map(tuple, sent))), Counter(dict(map(tuple, received))))


class Notices:
    """Of one communicator; `unique` is what it was formed by."""

    def __init__(self, store: Store, unique: int, rank: int, size: int) -> None:
        self._store, self._prefix, self.rank = store, f"queued_aborted/{unique}", rank
        self._silent = [peer for peer in range(size) if peer != rank]
        self._heard: dict[int, Progress] = {}
        self._looked = 0.0

    def give(self, progress: Progress) -> None:
        with contextlib.suppress(Exception):  # the store may be gone; then no rank can be told
            self._store.set(f"{self._prefix}/{self.rank}", progress.encode())

    def look(self) -> dict[int, Progress]:
        """By peer that has aborted: what it had finished. May be called often."""
        if time.monotonic() - self._looked < _LOOK_EVERY:
            return self._heard
        self._looked = time.monotonic()
        for peer in list(self._silent):
            with contextlib.suppress(Exception):
                key = f"{self._prefix}/{peer}"
                if self._store.check([key]):
                    self._heard[peer] = Progress.decode(self._store.get(key))
                    self._silent.remove(peer)
        return self._heard
