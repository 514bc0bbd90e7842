"""Epochs as nested loops, and loops whose end is not known in advance.

    for epoch in job.epochs(10):
        with epoch:
            for step in epoch.steps():
                with step:
                    ...
            evaluate()

The state knows how many steps it has, and so in which epoch it is. Where that is not the epoch of the loop (in a rank
that has just joined, or after the world has gone back), the loop over the steps is left by an exception that `with
epoch:` takes: the code after the inner loop runs only where an epoch has come to its end.
"""

from collections.abc import Iterator
from types import TracebackType
from typing import Any

from understudy.errors import UsageError
from understudy.training.steps import Step

ENDLESS = 1 << 62  # steps


class OpenEnd:
    """The total of steps of a loop that the script may end (`job.finish()`). Protected, so that a rank that joins after
    that knows of it."""

    def __init__(self, total: int) -> None:
        self.total = total

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = int(state["total"])


class _AnotherEpoch(Exception):
    """The next step does not belong to this epoch."""


class Epoch:
    """What the outer loop yields. `number` is counted from 0."""

    def __init__(self, number: int, loop: "Epochs") -> None:
        self.number = number
        self.entered = False
        self._loop = loop

    def steps(self) -> Iterator[Step]:
        """Yields each step of this epoch until all of them are committed."""
        if not self.entered:
            raise UsageError("write `with epoch:` around what an epoch does")
        return self._loop.steps_of(self.number)

    def __enter__(self) -> "Epoch":
        self.entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return isinstance(error, _AnotherEpoch)


class Epochs:
    """`steps`: all of the job. `per_epoch`: how many steps an epoch has."""

    def __init__(self, steps: Iterator[Step], count: int, per_epoch: int, end: OpenEnd) -> None:
        self._steps, self._count, self._per_epoch, self._end = steps, count, per_epoch, end
        self._next: Step | None = None  # taken from `steps`, and not yet run

    def __iter__(self) -> Iterator[Epoch]:
        number = 0
        while True:
            epoch = Epoch(number, self)
            yield epoch
            if not epoch.entered:
                raise UsageError("write `with epoch:` around what an epoch does")
            number += 1
            if number >= self._count or self._end.total <= number * self._per_epoch or self._next is not None:
                self._next = self._take()  # at the end of the job: only when all ranks are done is there none
                if self._next is None:
                    return
                number = self._next.number // self._per_epoch

    def steps_of(self, epoch: int) -> Iterator[Step]:
        first, after = epoch * self._per_epoch, (epoch + 1) * self._per_epoch
        while True:
            step = self._take()
            if step is None:
                raise _AnotherEpoch("no step is left")
            if not step.anywhere and not first <= step.number < after:
                self._next = step
                raise _AnotherEpoch(f"step {step.number} is not in epoch {epoch}")
            yield step
            if step.committed and step.number + 1 in (after, self._end.total):
                return

    def _take(self) -> Step | None:
        step, self._next = self._next, None
        return step or next(self._steps, None)
