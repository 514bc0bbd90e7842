"""What the product must know of a device.

A device is *asynchronous* when the host runs ahead of it: a call returns when its work is queued. Then the host's view
of a step is not the device's. So the host waits at the fence for an event of its own; nothing is reported, put back,
digested or copied before the queue has come to rest; and a queue that does not come to rest ends the process, because
what it will still write cannot be known. On a device that is not asynchronous all of this is done already when it is
asked for.

Knows nothing of groups: how a queue that hangs in a collective is freed is known to its family of communicators
(`groups.families`). A family names the device that its tensors are on.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch


class FenceEvent(Protocol):
    """A point in what was queued so far."""

    def complete(self) -> bool:
        """Has the device come to this point? Asked in a loop: it never waits. DeviceLost when that cannot be known any
        more."""
        ...


@runtime_checkable
class Device(Protocol):
    """`name`: as plugins and families call it. `asynchronous`: does the host run ahead of it? It is chosen once, when a
    member is put together, which ways through the product follow from that."""

    name: str
    asynchronous: bool

    def present(self) -> bool:
        """Is there one that this process could use? The question takes nothing of it."""
        ...

    def objection(self, environment: Mapping[str, str]) -> str | None:
        """Why a fault could not be recovered on it, in a sentence that says what to change."""
        ...

    def spoilt_by_fork(self) -> bool:
        """Asked in a forked process: has its parent touched the device, so that this process cannot use it?"""
        ...

    def touched(self) -> bool:
        """Has this process used any of them, so that it is settled which ones it sees under which number?"""
        ...

    def view(self, devices: Sequence[str], own: int, at: int) -> Mapping[str, str]:
        """Variables under which a process that has not touched any sees these devices of its host, with its own one
        (`own`, in their order) under the number `at`."""
        ...

    def take(self, local_rank: int) -> torch.device:
        """The one of this local rank. It is the current one from now on, and is bound to no group."""
        ...

    def holds(self, tensor: torch.Tensor) -> bool:
        """Is this (local) tensor in its memory? Then what is done with it is queued, and what it is sent by are groups
        of its family."""
        ...

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in its memory of a tensor of the host's."""
        ...

    def pin(self, memory: torch.Tensor) -> None:
        """Host memory to which copies will be made again and again: they shall go beside the host. Until `unpin`."""
        ...

    def unpin(self, memory: torch.Tensor) -> None: ...

    def copy_to_host(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> FenceEvent:
        """Queue copies from tensors of its memory to host memory, behind everything that is queued now; what is queued
        later does not wait for them. An event behind the last one: until then the sources must stay as they are."""
        ...

    def record(self) -> FenceEvent:
        """An event behind everything that is queued now and that the next optimizer would read."""
        ...

    def drain(self, within: float | None) -> None:
        """Return when everything that is queued has run. DeviceLost when that has not happened `within` so many
        seconds; None waits as long as it takes."""
        ...

    def probe(self, within: float) -> None:
        """Queue something small and see it end: does this process's own context still work? DeviceLost if not."""
        ...

    def is_lost(self, error: BaseException) -> bool:
        """Does this error say that nothing can run in this process's context any more?"""
        ...

    def seed(self, value: int) -> None:
        """Its random streams, if they are in use."""
        ...

    def random_streams(self) -> list[torch.Tensor]:
        """The state of its random streams, in host memory; none if they are not in use."""
        ...

    def set_random_streams(self, streams: Sequence[torch.Tensor]) -> None: ...
