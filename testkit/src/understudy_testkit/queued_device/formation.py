"""How a communicator is formed, again and again under one backend, what is known of its errors, and how it ends."""

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend, ErrorType, ReconfigureOptions, Store

from understudy_testkit.queued_device.communicator import Communicator, Operation
from understudy_testkit.queued_device.device import QueuedDevice
from understudy_testkit.queued_device.gloo import Gloo
from understudy_testkit.queued_device.notices import Notices
from understudy_testkit.queued_device.stream import Event
from understudy_testkit.queued_device.work import QueuedWork

NAME = "queued"
_NEVER = -1  # the uuid of a backend that is not formed
_CLAIM = "queued_reconfigure/{}/claimed"


class Formation(Backend):
    """`enable_reconfigure`: it is formed by `reconfigure`, and an error does not end the process."""

    def __init__(
        self,
        device: QueuedDevice,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        enable_reconfigure: bool,
        ranks: list[int] | None = None,
    ) -> None:
        super().__init__(rank, size)
        self.device = device
        self._store, self._notice_store = store, _second_client(store)
        self._place, self._count = rank, size
        self._made_for = rank, size  # a handle of gloo's names its rank, and must be like no other one
        self._own_options = Backend.Options(NAME, timeout)
        self._own_options.enable_reconfigure = enable_reconfigure
        self._own_options.global_ranks_in_group = ranks or []
        self._forming = threading.Lock()  # NCCL's reconfigure has one too
        self._instance = secrets.randbits(63)
        self._next: Gloo | None = None
        self._communicator: Communicator | None = None
        self._error = ErrorType.SUCCESS
        self._hooks: dict[int, Callable[[], None]] = {}
        self._collected: list[Operation] | None = None
        self._last: Event | None = None
        if not enable_reconfigure:
            self._communicator = self._begin(Gloo(store, rank, size, timeout, reconfigurable=False), _NEVER)
        device.watchdog.watch(self)

    # -- what torch asks ----------------------------------------------------------------------------------------------

    @property
    def options(self) -> Any:
        return self._own_options

    @property
    def supports_reconfigure(self) -> bool:
        return True

    @property
    def supports_abort_hooks(self) -> bool:
        return True

    def rank(self) -> int:
        return self._place

    def size(self) -> int:
        return self._count

    def name(self) -> str:
        return NAME

    def getBackendName(self) -> str:
        return NAME

    def get_error(self) -> ErrorType:
        return self._error

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        self._hooks[hook_id] = hook

    registerAbortHook = register_abort_hook  # as C++ looks for it

    def unregister_abort_hook(self, hook_id: int) -> None:
        self._hooks.pop(hook_id, None)

    unregisterAbortHook = unregister_abort_hook

    # -- forming ------------------------------------------------------------------------------------------------------

    def get_reconfigure_handle(self) -> str:
        """Where this rank can be reached next time. It names what the rank is in now, so an attempt, whether it fails
        or not, makes the handle of a formed backend stale."""
        if self._next is None:
            self._next = Gloo(self._store, *self._made_for, self._own_options._timeout, reconfigurable=True)
        unique = self._communicator.unique if self._communicator is not None else _NEVER
        return f"{NAME}:{self._place}:{unique}:{self._instance}:{self._next.handle}"

    def reconfigure(self, options: ReconfigureOptions) -> QueuedWork:
        """A second call waits for the first, however long that takes: its own timeout begins when it has the turn."""
        with self._forming:
            handles, timeout = list(options.handles), options.timeout or self._own_options._timeout
            own = self.get_reconfigure_handle()
            if own not in handles:
                raise RuntimeError(f"{own} is not among the handles {handles}")
            place, deadline = handles.index(own), time.monotonic() + timeout.total_seconds()
            self._claim(options.uuid, place, timeout)
            self._end_former()
            gloo, self._next = self._next, None
            assert gloo is not None
            inner = [handle.split(":", 4)[4] for handle in handles]
            try:
                gloo.connect(options.uuid, inner, timedelta(seconds=max(0.001, deadline - time.monotonic())))
            except Exception:
                gloo.leave()
                raise
            self._place, self._count = place, len(handles)
            self._communicator, self._error = self._begin(gloo, options.uuid), ErrorType.SUCCESS
        return QueuedWork(self.device.record_event())

    def _claim(self, unique: int, place: int, timeout: timedelta) -> None:
        """The new rank 0 takes the uuid; the others wait for that, which their store may interrupt."""
        key = _CLAIM.format(unique)
        if place == 0:
            claim = secrets.token_hex(8)
            if self._store.compare_set(key, "", claim) != claim.encode():
                raise RuntimeError(f"reconfigure uuid {unique} was already used; each reconfigure() requires a new one")
        else:
            self._store.wait([key], timeout)

    def _end_former(self) -> None:
        if self._communicator is not None:
            self._communicator.leave()
            self._communicator = None

    def _begin(self, gloo: Gloo, unique: int) -> Communicator:
        told = self.device.contagion
        notices = Notices(self._notice_store, unique, self._place, self._count) if told else None
        return Communicator(gloo, unique, notices)

    # -- ending -------------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        self._abort_with(ErrorType.COMM_ERROR)

    def _abort_with(self, error: ErrorType) -> None:
        """The error is known before anything else happens. Formed by `reconfigure`, it returns at once; otherwise it
        waits until the queue has left all of its operations."""
        self._error = error
        for hook in list(self._hooks.values()):
            hook()
        if self._communicator is not None:
            self._communicator.abort()
        if not self._own_options.enable_reconfigure and self._last is not None:
            self._last.synchronize()

    def shutdown(self) -> None:
        self._error = ErrorType.COMM_ERROR
        self._end_former()

    def fail(self, error: ErrorType = ErrorType.COMM_ERROR) -> None:
        """The watchdog has seen an error, such as one of a network card."""
        if not self._own_options.enable_reconfigure:
            print(f"queued: {error}: the watchdog ends this process", file=sys.stderr, flush=True)
            os.abort()
        self._abort_with(error)

    def look(self) -> None:
        """Called by the watchdog now and then."""
        communicator = self._communicator
        if communicator is None or communicator.aborted or self._error != ErrorType.SUCCESS:
            return
        if communicator.running_for() > self._own_options._timeout.total_seconds():
            self.fail(ErrorType.TIMEOUT)

    # -- for the collectives ------------------------------------------------------------------------------------------

    def _usable(self) -> Communicator:
        if self._error != ErrorType.SUCCESS:
            raise dist.DistBackendError(f"the communicator was aborted ({self._error}): reconfigure() it first")
        if self._communicator is None:
            raise RuntimeError("not initialized: call reconfigure() before issuing operations")
        return self._communicator

    def _trouble_of(self, communicator: Communicator) -> Exception | None:
        if communicator is self._communicator and self._error == ErrorType.SUCCESS:
            return None
        return dist.DistBackendError(f"the communicator of this work was aborted ({self._error})")


def _second_client(store: Store) -> Store:
    """A client of a TCPStore can do one thing at a time, and a rank may wait in it when another aborts."""
    try:
        return store.clone()
    except Exception:
        return store
