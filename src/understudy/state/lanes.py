"""Parcels on their way from one donor over the process group, and how many at once."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch

from understudy.state.mail import Expected, Mail

BUNCH = 64
"""Parcels after which the receiver tells its donor to go on."""
UNDER_WAY = 2 * BUNCH
"""Parcels that a donor sends ahead of that: never all of its state at once, which may need a copy in plain memory."""

Thing = TypeVar("Thing")


class Lane(Generic[Thing]):
    """The receiver's end: what comes from `donor`, in order, each with the buffer in which it landed."""

    def __init__(
        self, mail: Mail, donor: int, things: Sequence[Thing], buffer_of: Callable[[Thing], torch.Tensor]
    ) -> None:
        self._mail, self._donor, self._buffer_of = mail, donor, buffer_of
        self._later = deque(things)
        self._coming: deque[tuple[Thing, torch.Tensor, Expected]] = deque()
        self._expect(UNDER_WAY)

    def __iter__(self) -> Iterator[tuple[Thing, torch.Tensor]]:
        arrived = 0
        while self._coming:
            thing, buffer, message = self._coming.popleft()
            message.wait()
            arrived += 1
            if arrived % BUNCH == 0 and self._later:
                self._expect(BUNCH)
                self._mail.answer(self._donor)
            yield thing, buffer

    def _expect(self, count: int) -> None:
        for thing in [self._later.popleft() for _ in range(min(count, len(self._later)))]:
            buffer = self._buffer_of(thing)
            self._coming.append((thing, buffer, self._mail.expect(buffer, self._donor)))


def send_in_bunches(mail: Mail, receiver: int, contents: Iterator[torch.Tensor]) -> None:
    """The donor's end."""
    for place, content in enumerate(contents):
        if place >= UNDER_WAY and place % BUNCH == 0:
            mail.hear_answer(receiver, under_way=UNDER_WAY - BUNCH)
        mail.post(content, receiver)
