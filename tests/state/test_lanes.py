"""Parcels in bunches: a donor never runs further ahead than it may, and everything arrives in order."""

from collections import deque

import pytest
import torch

from understudy.state import lanes
from understudy.state.lanes import Lane, send_in_bunches


class Expected:
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

    def post(self, message: torch.Tensor, _to: int) -> None:
        self.sent.append(message)

    def hear_answer(self, _sender: int, under_way: int) -> None:
        assert under_way == 2
        self.heard += 1
        while self.answers < self.heard:
            assert next(self.receiver) is not None

    def answer(self, _to: int) -> None:
        self.answers += 1

    def expect(self, into: torch.Tensor, _sender: int) -> Expected:
        def arrive() -> None:
            self.most_ahead = max(self.most_ahead, len(self.sent))
            into.copy_(self.sent.popleft())
            self.taken += 1

        return Expected(arrive)

    def run(self) -> list[int]:
        into = [torch.zeros(1) for _ in self._contents]
        self.receiver = iter(Lane(self, 0, into, lambda thing: thing))  # type: ignore[arg-type]
        send_in_bunches(self, 1, iter(self._contents))  # type: ignore[arg-type]
        for _ in self.receiver:
            pass
        return [int(value) for value in into]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 7, 8, 9, 40])
def test_everything_arrives_in_order_and_never_too_much_is_ahead(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "BUNCH", 2)
    monkeypatch.setattr(lanes, "UNDER_WAY", 4)
    line = Line([torch.tensor([float(number)]) for number in range(count)])
    assert line.run() == list(range(count))
    assert line.most_ahead <= 4
    assert line.answers == line.heard
