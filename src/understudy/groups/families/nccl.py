"""NCCL, on CUDA devices. Untested: no GPU was at hand. What the host does of it was tried without a device.

torch's "nccl" of 2.15 can be connected again only if each of its groups was made reconfigurable; then its watchdog
spares the process as well. Such a group has no communicator until it is connected for the first time, and its
communicators do not block the host. `abort` sets the error state of a group first, and frees its kernels then. Blocked
kernels give no error of their own when a peer dies: the group must be broken from outside.

While a group is being connected nothing can interrupt it but its deadline, and it can be connected by one thread at a
time. So the deadline is short, and a group that is stuck gets another backend (`groups.connecting`).
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from understudy.groups.families.abortable import Communicators
from understudy.groups.families.contract import Links, reconfigure

_CONNECT, _CONNECT_PER_RANK = timedelta(seconds=20), timedelta(milliseconds=50)
"""A budget for connecting one group. Guesses: it was never measured."""

_OFF = ("", "0")


class Nccl:
    contract_version = 2
    backend = "nccl"
    backend_type = dist.ProcessGroup.BackendType.NCCL
    device = "cuda"
    carries_words = False
    connected_when_made = False
    arguments: Mapping[str, Any] = {"enable_reconfigure": True}
    variables: Mapping[str, str] = {
        "TORCH_FR_BUFFER_SIZE": "0",  # the flight recorder dumps before a group's kernels are freed
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # no watchdog ends the process
        "NCCL_NVLS_ENABLE": "0",  # sums in switches, in an order of their own
        "NCCL_SOCKET_RETRY_CNT": "1",  # a peer that has died is not waited for
    }
    breaks_in_rest = False

    def objection(self, environment: Mapping[str, str]) -> str | None:
        def is_on(name: str) -> bool:
            return environment.get(name, "") not in _OFF

        if environment.get("TORCH_DIST_USE_NCCL2") == "0":
            return "TORCH_DIST_USE_NCCL2=0 chooses an NCCL whose groups cannot be connected again; unset it"
        if environment.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
            return "TORCH_DISTRIBUTED_DEBUG=DETAIL wraps groups so that they cannot be connected again; use INFO"
        if is_on("TORCH_NCCL_BLOCKING_WAIT") or is_on("NCCL_BLOCKING_WAIT"):
            return "TORCH_NCCL_BLOCKING_WAIT makes the host wait where nothing can free it; unset it"
        if is_on("TORCH_DISTRIBUTED_USE_TORCHCOMMS"):
            return "TORCH_DISTRIBUTED_USE_TORCHCOMMS puts something else under the groups; unset it"
        return None

    def make(self, store: Store, place: int, ranks: list[int], timeout: timedelta) -> Any:
        """The current device is taken when it is connected."""
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        options.enable_reconfigure = True
        options.global_ranks_in_group = ranks
        return dist.ProcessGroupNCCL2(store, place, len(ranks), options)

    def connect_within(self, timeout: timedelta, size: int) -> timedelta:
        return min(timeout, _CONNECT + size * _CONNECT_PER_RANK)

    def connect(self, backend: Any, unique: int, handles: list[str], within: timedelta, device: torch.device) -> None:
        """The communicator is made on the device that is current in this thread."""
        torch.cuda.set_device(device)
        reconfigure(backend, unique, handles, within)

    def links(self, exists: Callable[[str], bool], formed: Callable[[list[int]], None]) -> Links:  # noqa: ARG002
        """NCCL's own sockets are left to NCCL: one that it closes says nothing about a peer."""
        return Communicators(exists)
