"""Where the state of a coordinator can be kept: the contract of a store, and two of our own (the third: `folder`).

A store is found by the first word of `--store`: `etcd` for etcd://host:2379, `memory` for memory. What its
state stores promise is in `state_store.py`, and is tried by `understudy_testkit.conformance.stores`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from understudy.coordinator.etcd import EtcdStateStore
from understudy.coordinator.etcd_client import OPEN, EtcdAccess
from understudy.coordinator.state_store import MemoryStateStore, SharedMemoryState, StateStore
from understudy.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRequest:
    """`address`: `--store`, as it was given. `job`: jobs in one store do not see each other. `say`: for people, when
    the store does not answer. `access`: `--store-certs`, `--store-name` and `--store-login`."""

    address: str
    job: str
    say: Callable[[str], None] = lambda _: None
    access: EtcdAccess = OPEN


@runtime_checkable
class StoreProvider(Protocol):
    def open(self, request: StoreRequest) -> StateStore:
        """One coordinator's connection to the store; it need not answer yet. SettingsError: such an address cannot be
        right."""
        ...


class MemoryStores:
    """For one coordinator: the state lives and dies with the process. State stores of one provider and job share it."""

    contract_version = 1

    def __init__(self) -> None:
        self._shared: dict[str, SharedMemoryState] = {}

    def open(self, request: StoreRequest) -> StateStore:
        if request.address != "memory":
            raise SettingsError(f"--store {request.address}: memory has no address; give memory alone")
        return MemoryStateStore(self._shared.setdefault(request.job, SharedMemoryState()))


class EtcdStores:
    """For several coordinators."""

    contract_version = 1

    def open(self, request: StoreRequest) -> StateStore:
        return EtcdStateStore(request.address, request.job, say=request.say, access=request.access)
