"""Chunks on their way from one donor over the process group, and how many at once."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch

from understudy.state.transfer.p2p import Channel, PendingReceive

ACK_EVERY = 64
"""Chunks after which the receiver tells its donor to go on."""
WINDOW = 2 * ACK_EVERY
"""Chunks that a donor sends ahead of that: never all of its state at once, which may need a copy in plain memory."""

Thing = TypeVar("Thing")


class ReceiveWindow(Generic[Thing]):
    """The receiver's end: what comes from `donor`, in order, each with the buffer in which it landed."""

    def __init__(
        self, channel: Channel, donor: int, things: Sequence[Thing], buffer_of: Callable[[Thing], torch.Tensor]
    ) -> None:
        self._channel, self._donor, self._buffer_of = channel, donor, buffer_of
        self._later = deque(things)
        self._coming: deque[tuple[Thing, torch.Tensor, PendingReceive]] = deque()
        self._expect(WINDOW)

    def __iter__(self) -> Iterator[tuple[Thing, torch.Tensor]]:
        arrived = 0
        while self._coming:
            thing, buffer, message = self._coming.popleft()
            message.wait()
            arrived += 1
            if arrived % ACK_EVERY == 0 and self._later:
                self._expect(ACK_EVERY)
                self._channel.ack(self._donor)
            yield thing, buffer

    def _expect(self, count: int) -> None:
        for thing in [self._later.popleft() for _ in range(min(count, len(self._later)))]:
            buffer = self._buffer_of(thing)
            self._coming.append((thing, buffer, self._channel.expect(buffer, self._donor)))


def send_windowed(channel: Channel, receiver: int, contents: Iterator[torch.Tensor]) -> None:
    """The donor's end."""
    for place, content in enumerate(contents):
        if place >= WINDOW and place % ACK_EVERY == 0:
            channel.await_ack(receiver, in_flight=WINDOW - ACK_EVERY)
        channel.send(content, receiver)
