"""Families of communicators: the contract of one, and gloo.

A family makes the backends that stand under torch's process groups, and knows how a blocked operation of theirs is made
to fail. A group keeps its identity over a regroup only if its backend can be connected again to other peers. So what
`make` returns is a backend of torch with `get_reconfigure_handle()` and `reconfigure(options)`, and with
`send(tensors, to, tag)` and `recv(tensors, sender, tag)` for bridges between two ranks. `join(backend=NAME)` chooses a
family; `understudy_testkit.conformance.communicators` tries what it promises.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from understudy.foundation.settings import network_interfaces
from understudy.groups.connections import Connections

_THREADS = 2


class Links(Protocol):
    """What the groups of this process are connected by. All may be called from any thread."""

    def forming(self, group: str = "", fresh: bool = False, keep: str | None = None) -> AbstractContextManager[None]:
        """What is connected inside belongs to `group`. `fresh`: all groups are formed again, so that what was before is
        forgotten, except the links of `keep`."""
        ...

    def hear(self, value: bytes) -> None:
        """Something that ranks have told each other through the store."""
        ...

    def broken(self) -> bool:
        """Has any peer gone, as far as is known without asking? It is called in every step."""
        ...

    def break_all(self) -> int:
        """Every blocked operation of the groups fails now, or soon. Returns how many links were broken."""
        ...

    def break_group(self, group: str) -> int: ...

    def unsent(self) -> bool:
        """Is something that was sent still on this host?"""
        ...


@runtime_checkable
class CommunicatorFamily(Protocol):
    """`backend`: as `init_process_group` takes it. `backend_type`: under which torch keeps it; CUSTOM is taken."""

    backend: str
    backend_type: dist.ProcessGroup.BackendType

    def make(self, store: Store, place: int, ranks: list[int], timeout: timedelta) -> Any:
        """A backend without connections, for the one at `place` among `ranks`."""
        ...

    def links(self, exists: Callable[[str], bool], formed: Callable[[list[int]], None]) -> Links:
        """`exists`: whether the script still has a group of that name. `formed`: to be told of the descriptors of new
        connections; the agent keeps them open should this process die in the middle of a send."""
        ...


class Gloo:
    """On CPUs, over TCP."""

    contract_version = 1
    backend = "gloo"
    backend_type = dist.ProcessGroup.BackendType.GLOO

    def make(self, store: Store, place: int, ranks: list[int], timeout: timedelta) -> Any:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout
        options._devices = _devices()
        options._threads = _THREADS
        options.enable_reconfigure = True
        options.global_ranks_in_group = ranks
        return dist.ProcessGroupGloo(store, place, len(ranks), options)

    def links(self, exists: Callable[[str], bool], formed: Callable[[list[int]], None]) -> Links:
        return Connections(exists, formed)


def _devices() -> list[Any]:
    """The same that the founders' groups have, which the engine has made."""
    make = dist.ProcessGroupGloo
    named = [make.create_device(interface=name) for name in network_interfaces()]
    return named or [make.create_default_device()]
