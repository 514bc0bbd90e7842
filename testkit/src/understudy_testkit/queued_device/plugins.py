"""The emulated device for jobs of the product: `register()`, then `understudy.join(backend="queued")`.

The family is that of NCCL with another backend under it, so that what the product does with NCCL's communicators
(holding them, breaking them, looking at their errors) is done here by the same code.
"""

import functools
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Store

from understudy.errors import DeviceLost
from understudy.groups.families.contract import reconfigure
from understudy.groups.families.nccl import Nccl
from understudy.plugins import registry
from understudy.plugins.kinds import COMMUNICATOR, DEVICE
from understudy_testkit.queued_device import host_code
from understudy_testkit.queued_device.backend import QueuedBackend
from understudy_testkit.queued_device.formation import NAME
from understudy_testkit.queued_device.installing import BACKEND_TYPE, install, installed, is_installed
from understudy_testkit.queued_device.stream import DeviceFault, Event


def register() -> None:
    """Before `understudy.join()`, in every process of the job."""
    registry.register(COMMUNICATOR, NAME, f"{__name__}:{QueuedFamily.__name__}")
    registry.register(DEVICE, NAME, f"{__name__}:{EmulatedDevice.__name__}")


class QueuedFamily(Nccl):
    backend = NAME
    backend_type = BACKEND_TYPE
    device = NAME
    variables: Mapping[str, str] = {}

    def objection(self, environment: Mapping[str, str]) -> str | None:  # noqa: ARG002
        return None

    def make(self, store: Store, place: int, ranks: list[int], timeout: timedelta) -> Any:
        return QueuedBackend(installed(), store, place, len(ranks), timeout, True, ranks)

    def connect(self, backend: Any, unique: int, handles: list[str], within: timedelta, device: torch.device) -> None:  # noqa: ARG002
        reconfigure(backend, unique, handles, within)


class EmulatedEvent:
    def __init__(self, event: Event) -> None:
        self._event = event

    def complete(self) -> bool:
        try:
            return self._event.query()
        except DeviceFault as fault:
            raise DeviceLost(str(fault)) from fault


class EmulatedWord:
    """A number in pinned memory: the queue reads what it is when it comes there."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._value = -1

    def raise_to(self, value: int) -> None:
        with self._changing:
            self._value = max(self._value, value)

    def read(self) -> torch.Tensor:
        target = torch.zeros(1, dtype=torch.int64)
        memory = torch.ops.aten.alias.default(target)
        installed().dispatcher.put(lambda: _fill(memory, self._value), [target])
        return target


class EmulatedNumber:
    def __init__(self, number: torch.Tensor) -> None:
        self._seen: list[float] = []
        memory = torch.ops.aten.alias.default(number)
        installed().dispatcher.put(lambda: self._seen.append(float(memory.item())), [])
        self._event = EmulatedEvent(installed().record_event())

    def complete(self) -> bool:
        return self._event.complete()

    def value(self) -> float:
        return self._seen[0]


def _fill(memory: torch.Tensor, value: int) -> None:
    memory.fill_(value)


class EmulatedDevice:
    contract_version = 2
    name = NAME
    asynchronous = True

    def present(self) -> bool:
        return True

    def objection(self, environment: Mapping[str, str]) -> str | None:  # noqa: ARG002
        return None

    def spoilt_by_fork(self) -> bool:
        return False

    def touched(self) -> bool:
        return False

    def view(self, devices: Sequence[str], own: int, at: int) -> Mapping[str, str]:  # noqa: ARG002
        return {}

    def take(self, local_rank: int) -> torch.device:  # noqa: ARG002
        """torch calls it `cpu`."""
        if not is_installed():
            device = install()
            device.watch_also(functools.partial(host_code.watch, used=device.used))
        return torch.device("cpu")

    def holds(self, tensor: torch.Tensor) -> bool:
        return installed().memory.holds(tensor)

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        return installed().bring(tensor)

    def pin(self, memory: torch.Tensor) -> None:
        """There is nothing that would copy more slowly."""

    def unpin(self, memory: torch.Tensor) -> None:
        """See `pin`."""

    def copy_to_host(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> EmulatedEvent:
        """In the queue: there is no other one. Whoever looks at a copy that is still to be made is found."""
        device = installed()
        for source, landing in pairs:
            device.dispatcher.put(functools.partial(_copy, source, landing), [landing])
        return self.record()

    def record(self) -> EmulatedEvent:
        return EmulatedEvent(installed().record_event())

    def drain(self, within: float | None) -> None:
        self._require(installed().drain, within, "its queue did not come to rest in time")

    def probe(self, within: float) -> None:
        self._require(installed().probe, within, "it did not answer a probe")

    def word(self) -> "EmulatedWord":
        return EmulatedWord()

    def fetch(self, number: torch.Tensor) -> "EmulatedNumber":
        return EmulatedNumber(number)

    def _require(self, question: Any, within: float | None, otherwise: str) -> None:
        try:
            if question(within):
                return
        except DeviceFault as fault:
            raise DeviceLost(str(fault)) from fault
        raise DeviceLost(otherwise)

    def is_lost(self, error: BaseException) -> bool:
        return isinstance(error, DeviceFault)

    def seed(self, value: int) -> None:
        """Its numbers are drawn by the host's generator."""

    def random_streams(self) -> list[torch.Tensor]:
        return []

    def set_random_streams(self, streams: Sequence[torch.Tensor]) -> None:
        """It has none."""


def _copy(source: torch.Tensor, landing: torch.Tensor) -> None:
    landing.copy_(source)
