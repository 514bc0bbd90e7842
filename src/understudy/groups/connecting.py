"""Connects a backend to its new peers, and knows a backend on which a thread is still at work.

A peer that dies before it has connected keeps us waiting, and there is no connection yet that could be broken. So an
attempt runs in a thread that can be left behind; it ends with the group's timeout. Until then no other thread may touch
its backend: torch has no lock around a backend's connections, and a late success would put old peers in place of new
ones. The next generation gets another backend under the same group.

torch keeps one backend per type under a group, and finds the one to use by device. So each further backend stands under
a type that the group does not use. It serves the group from then on, until an attempt gets stuck on it as well.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import GroupName

from understudy.errors import RegroupError, StepAbandoned
from understudy.groups.families.contract import CommunicatorFamily

_LOOK_AGAIN_EVERY = 0.02  # seconds between two looks at whether the generation is abandoned
_STUCK_AFTER = 0.5  # seconds; peers that live have connected or given up by then
_Type = dist.ProcessGroup.BackendType
_TYPES = (_Type.GLOO, _Type.UCC, _Type.MPI, _Type.XCCL, _Type.NCCL)  # CUSTOM: a joiner's sandbox has it


class Attempt:
    """One attempt to connect a backend of a family to the peers that showed these handles. Begins at once. `timeout`:
    of the job; the family may allow less."""

    def __init__(
        self,
        family: CommunicatorFamily,
        backend: Any,
        unique: int,
        handles: list[str],
        timeout: timedelta,
        device: torch.device,
    ) -> None:
        self.backend = backend
        self._over = threading.Event()
        self._trouble: Exception | None = None
        attempt = (family, unique, handles, family.connect_within(timeout, len(handles)), device)
        threading.Thread(target=self._connect, args=attempt, name="understudy-regroup", daemon=True).start()

    def _connect(
        self, family: CommunicatorFamily, unique: int, handles: list[str], within: timedelta, device: torch.device
    ) -> None:
        try:
            family.connect(self.backend, unique, handles, within, device)
        except Exception as trouble:
            self._trouble = trouble
        self._over.set()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def wait(self, abandoned: Callable[[], bool]) -> None:
        """It is left only when it is stuck."""
        while not self._over.wait(_LOOK_AGAIN_EVERY):
            if abandoned() and not self._over.wait(_STUCK_AFTER):
                raise StepAbandoned("the generation was abandoned while its peers were connecting")
        if self._trouble is not None:
            raise self._trouble


class Backends:
    """The backend of each group. `family`: of those that the engine has made. `make` makes another one for a group."""

    def __init__(
        self,
        device: torch.device,
        family: CommunicatorFamily,
        make: Callable[[GroupName, dist.ProcessGroup], Any],
    ) -> None:
        self._device, self._own, self._make = device, family.backend_type, make
        self._attempts: list[Attempt] = []  # those that may not be over yet
        self._of: dict[GroupName, dict[_Type, Any]] = {}  # of groups on which an attempt was stuck

    def connect(
        self, family: CommunicatorFamily, backend: Any, unique: int, handles: list[str], timeout: timedelta
    ) -> Attempt:
        attempt = Attempt(family, backend, unique, handles, timeout, self._device)
        self._attempts = [each for each in self._attempts if not each.over] + [attempt]
        return attempt

    def free(self, name: GroupName, group: dist.ProcessGroup) -> Any:
        """The group's backend. If a thread is still at work on it: another one, which is the group's from now on."""
        current = group._get_backend(self._device)
        if not self._is_busy(current):
            return current
        made = self._of.setdefault(name, {self._own: current})
        for kind in _TYPES:
            if kind not in made:
                made[kind] = self._make(name, group)
            if not self._is_busy(made[kind]):
                group._register_backend(self._device, kind, made[kind])
                return made[kind]
        raise RegroupError(f"{len(_TYPES)} attempts to form group {name} are still stuck; they end with its timeout")

    def _is_busy(self, backend: Any) -> bool:
        return any(attempt.backend is backend and not attempt.over for attempt in self._attempts)
