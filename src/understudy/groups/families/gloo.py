"""gloo: on CPUs, over TCP. It has no abort, and its groups are freed by their sockets (`groups.connections`)."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from understudy.foundation.settings import network_interfaces
from understudy.groups.connections import Connections
from understudy.groups.families.contract import Links, reconfigure

_THREADS = 2
_NOTHING: Mapping[str, Any] = {}


class Gloo:
    contract_version = 2
    backend = "gloo"
    backend_type = dist.ProcessGroup.BackendType.GLOO
    device = "cpu"
    carries_words = True
    connected_when_made = True
    arguments = _NOTHING
    variables = _NOTHING
    breaks_in_rest = True

    def objection(self, environment: Mapping[str, str]) -> str | None:  # noqa: ARG002
        return None

    def make(self, store: Store, place: int, ranks: list[int], timeout: timedelta) -> Any:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout
        options._devices = _devices()
        options._threads = _THREADS
        options.enable_reconfigure = True
        options.global_ranks_in_group = ranks
        return dist.ProcessGroupGloo(store, place, len(ranks), options)

    def connect_within(self, timeout: timedelta, size: int) -> timedelta:  # noqa: ARG002
        """The job's own. A thread that is stuck can be left behind (`groups.connecting`)."""
        return timeout

    def connect(
        self,
        backend: Any,
        unique: int,
        handles: list[str],
        within: timedelta,
        device: torch.device,  # noqa: ARG002
    ) -> None:
        reconfigure(backend, unique, handles, within)

    def links(self, exists: Callable[[str], bool], formed: Callable[[list[int]], None]) -> Links:
        return Connections(exists, formed)


def _devices() -> list[Any]:
    """The same that the founders' groups have, which the engine has made."""
    make = dist.ProcessGroupGloo
    named = [make.create_device(interface=name) for name in network_interfaces()]
    return named or [make.create_default_device()]
