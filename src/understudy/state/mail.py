"""Messages between two ranks of the default group, in which nobody ever waits for a send.

gloo forgets to wake a thread that waits for a send when the connection breaks while the send is queued; it would sleep
until the group's timeout. A receive is always woken. So a send is posted and kept, and whoever must know that it
arrived waits for an answer.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

_ANSWER = torch.zeros(1, dtype=torch.uint8)


class Carrier(Protocol):
    """Sends and receives; both return at once with something to wait for."""

    def send(self, message: torch.Tensor, to: int, /) -> Any: ...

    def receive(self, into: torch.Tensor, sender: int, /) -> Any: ...


class DefaultGroup:
    """`place_of`: what torch calls a rank."""

    def __init__(self, place_of: Callable[[int], int] = lambda rank: rank) -> None:
        self._place_of = place_of

    def send(self, message: torch.Tensor, to: int, /) -> Any:
        return dist.isend(message, self._place_of(to))

    def receive(self, into: torch.Tensor, sender: int, /) -> Any:
        return dist.irecv(into, self._place_of(sender))


class Mail:
    """Between ranks of the default group, or by another `carrier`. What was posted is kept until it has been answered,
    or until the next transfer, since a message whose sender has dropped it is never sent."""

    def __init__(self, carrier: Carrier | None = None) -> None:
        self._carrier: Carrier = carrier or DefaultGroup()
        self._posted: dict[int, deque[tuple[Any, torch.Tensor]]] = {}

    def begin(self) -> None:
        """A new transfer, over new connections: what was posted on the old ones is of no use to anybody."""
        self._posted.clear()

    def post(self, message: torch.Tensor, to: int) -> None:
        """`message` must not change until `to` has answered."""
        if message.numel():
            self._posted.setdefault(to, deque()).append((self._carrier.send(message, to), message))

    def post_text(self, text: bytes, to: int) -> None:
        """A message whose length the receiver does not know."""
        self.post(torch.tensor([len(text)]), to)
        self.post(torch.frombuffer(bytearray(text), dtype=torch.uint8), to)

    def receive_text(self, sender: int) -> bytes:
        length = torch.zeros(1, dtype=torch.int64)
        self.receive(length, sender)
        text = torch.empty(int(length), dtype=torch.uint8)
        self.receive(text, sender)
        return bytes(text.numpy())

    def answer(self, to: int) -> None:
        self.post(_ANSWER, to)

    def hear_answer(self, sender: int, under_way: int) -> None:
        """`sender` has everything but the last messages, as many as `under_way`."""
        self.receive(torch.empty_like(_ANSWER), sender)
        posted = self._posted[sender]
        while len(posted) > under_way:
            posted.popleft()

    def expect(self, into: torch.Tensor, sender: int) -> "Expected":
        return Expected(self._carrier.receive(into, sender) if into.numel() else None)

    def receive(self, into: torch.Tensor, sender: int) -> None:
        self.expect(into, sender).wait()


class Expected:
    """A message on its way."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()
