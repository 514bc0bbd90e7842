"""Chunks in a window: a donor never runs further ahead than it may, and everything arrives in order."""

from collections import deque

import pytest
import torch

from understudy.state.transfer import window
from understudy.state.transfer.window import ReceiveWindow, send_windowed


class Pending:
    def __init__(self, arrive: object) -> None:
        self.arrive = arrive

    def wait(self) -> None:
        self.arrive()  # type: ignore[operator]


class Line:
    """Both ends of a line in one thread: a receiver that needs a message lets the donor go on."""

    def __init__(self, contents: list[torch.Tensor]) -> None:
        self.sent: deque[torch.Tensor] = deque()
        self.answers = 0
        self.heard = 0
        self.most_ahead = 0
        self.taken = 0
        self._contents = contents

    def send(self, message: torch.Tensor, _to: int) -> None:
        self.sent.append(message)

    def await_ack(self, _sender: int, in_flight: int) -> None:
        assert in_flight == 2
        self.heard += 1
        while self.answers < self.heard:
            assert next(self.receiver) is not None

    def ack(self, _to: int) -> None:
        self.answers += 1

    def expect(self, into: torch.Tensor, _sender: int) -> Pending:
        def arrive() -> None:
            self.most_ahead = max(self.most_ahead, len(self.sent))
            into.copy_(self.sent.popleft())
            self.taken += 1

        return Pending(arrive)

    def run(self) -> list[int]:
        into = [torch.zeros(1) for _ in self._contents]
        self.receiver = iter(ReceiveWindow(self, 0, into, lambda thing: thing))  # type: ignore[arg-type]
        send_windowed(self, 1, iter(self._contents))  # type: ignore[arg-type]
        for _ in self.receiver:
            pass
        return [int(value) for value in into]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 7, 8, 9, 40])
def test_everything_arrives_in_order_and_never_too_much_is_ahead(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "ACK_EVERY", 2)
    monkeypatch.setattr(window, "WINDOW", 4)
    line = Line([torch.tensor([float(number)]) for number in range(count)])
    assert line.run() == list(range(count))
    assert line.most_ahead <= 4
    assert line.answers == line.heard
