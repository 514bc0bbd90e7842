"""Words of ours between ranks that are present: the fence between hosts, a question that all answer, messages from one
rank to another (state, digests, results).

They are tensors in host memory. Where the script's groups carry such, words go by the default group. Where they do not,
or where what waits for a device would be in their way, they go by a gloo group of our own beside it, which is formed
anew with every generation. Neither knows what is said.
"""

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, BarrierOptions

from understudy.errors import RegroupError


class Words(Protocol):
    def barrier(self) -> Any: ...

    def largest(self, number: int) -> int:
        """Of the numbers that all ranks name."""
        ...


class DefaultGroupWords:
    """Messages from one rank to another go by that group as well, with what `state.transfer` knows of it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.barrier = dist.barrier  # itself: it is called in every step

    def largest(self, number: int) -> int:
        numbers = torch.tensor([number], device=self._device)
        dist.all_reduce(numbers, dist.ReduceOp.MAX)
        return int(numbers.item())


class OwnWords:
    """By a backend of our own, between the ranks `present`. `send` and `receive` return at once with something to wait
    for. `use` it before anything is said."""

    def __init__(self) -> None:
        self._backend: Any = None
        self._present: list[int] = []

    def use(self, backend: Any, present: list[int]) -> None:
        """It is connected."""
        self._backend, self._present = backend, present

    def forget(self) -> None:
        """The generation is over."""
        self._backend = None

    def barrier(self) -> None:
        self._group().barrier(BarrierOptions()).wait()

    def largest(self, number: int) -> int:
        numbers = torch.tensor([number])
        options = AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self._group().allreduce([numbers], options).wait()
        return int(numbers.item())

    def send(self, message: torch.Tensor, to: int, /) -> Any:
        return self._group().send([message], self._present.index(to), 0)

    def receive(self, into: torch.Tensor, sender: int, /) -> Any:
        return self._group().recv([into], self._present.index(sender), 0)

    def _group(self) -> Any:
        if self._backend is None:
            raise RegroupError("no group for words of our own is connected")
        return self._backend
