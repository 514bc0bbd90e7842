"""Point-to-point messages between two ranks of the default group, in which no side ever waits for a send.

gloo forgets to wake a thread that waits for a send when the connection breaks while the send is queued; it would sleep
until the group's timeout. A receive is always woken. So a message is kept after it was handed to the group, and a
sender that must know that it arrived waits for an acknowledgement.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

_ACK = torch.zeros(1, dtype=torch.uint8)


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


class Channel:
    """Between ranks of the default group, or by another `carrier`. A sent message is kept until it is acknowledged, or
    until the next transfer, because a message that its sender has dropped is never sent."""

    def __init__(self, carrier: Carrier | None = None) -> None:
        self._carrier: Carrier = carrier or DefaultGroup()
        self._sent: dict[int, deque[tuple[Any, torch.Tensor]]] = {}

    def begin(self) -> None:
        """A new transfer, over new connections: what was sent on the old ones is of no use any more."""
        self._sent.clear()

    def send(self, message: torch.Tensor, to: int) -> None:
        """`message` must not change until `to` has acknowledged it."""
        if message.numel():
            self._sent.setdefault(to, deque()).append((self._carrier.send(message, to), message))

    def send_bytes(self, content: bytes, to: int) -> None:
        """A message whose length the receiver does not know."""
        self.send(torch.tensor([len(content)]), to)
        self.send(torch.frombuffer(bytearray(content), dtype=torch.uint8), to)

    def receive_bytes(self, sender: int) -> bytes:
        length = torch.zeros(1, dtype=torch.int64)
        self.receive(length, sender)
        content = torch.empty(int(length), dtype=torch.uint8)
        self.receive(content, sender)
        return bytes(content.numpy())

    def ack(self, to: int) -> None:
        self.send(_ACK, to)

    def await_ack(self, sender: int, in_flight: int) -> None:
        """`sender` has everything but the last messages, as many as `in_flight`."""
        self.receive(torch.empty_like(_ACK), sender)
        sent = self._sent[sender]
        while len(sent) > in_flight:
            sent.popleft()

    def expect(self, into: torch.Tensor, sender: int) -> "PendingReceive":
        return PendingReceive(self._carrier.receive(into, sender) if into.numel() else None)

    def receive(self, into: torch.Tensor, sender: int) -> None:
        self.expect(into, sender).wait()


class PendingReceive:
    """A message on its way."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()
