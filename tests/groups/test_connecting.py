"""Real gloo backends. Two ranks live in one process here, each with a group object of its own."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.distributed_c10d import GroupName

from understudy.errors import RegroupError, StepAbandoned
from understudy.groups.connecting import Backends
from understudy.groups.families.gloo import Gloo

CPU, GLOO = torch.device("cpu"), Gloo()
TIMEOUT = timedelta(seconds=20)


def gloo(store: HashStore, rank: int) -> Any:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = TIMEOUT
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._threads = 2
    options.enable_reconfigure = True
    return dist.ProcessGroupGloo(store, rank, 2, options)


class Side:
    """One rank of a group of two."""

    def __init__(self, store: HashStore, rank: int) -> None:
        self.rank, self.group = rank, dist.ProcessGroup(store, rank, 2)
        self.backends = Backends(CPU, GLOO, lambda *_: gloo(store, rank))
        self.group._register_backend(CPU, dist.ProcessGroup.BackendType.GLOO, gloo(store, rank))
        self.group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self.backend = self.free()

    def free(self) -> Any:
        self.backend = self.backends.free(GroupName("g"), self.group)
        return self.backend

    def begin(self, unique: int, handles: list[str]) -> Any:
        return self.backends.connect(GLOO, self.backend, unique, handles, TIMEOUT)

    def sum(self) -> float:
        value = torch.tensor([self.rank + 1.0])
        self.group.allreduce([value]).wait()
        return value.item()


def form(unique: int, one: Side, other: Side) -> None:
    handles = [side.backend.get_reconfigure_handle() for side in (one, other)]
    for attempt in [side.begin(unique, handles) for side in (one, other)]:
        attempt.wait(lambda: False)


def both(one: Callable[[], float], other: Callable[[], float]) -> list[float]:
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(other()), daemon=True)
    thread.start()
    found.append(one())
    thread.join(10)
    return found


def stuck(side: Side, unique: int, absent: Any) -> Any:
    """It waits for a peer that shows itself but never connects."""
    attempt = side.begin(unique, [side.backend.get_reconfigure_handle(), absent.get_reconfigure_handle()])
    with pytest.raises(StepAbandoned):
        attempt.wait(lambda: True)
    assert not attempt.over
    return attempt


def test_the_next_generation_does_not_share_its_backend_with_a_stuck_attempt() -> None:
    store = HashStore()
    one, other, late = Side(store, 0), Side(store, 1), Side(store, 1)
    form(1, one, other)
    first = one.backend
    handles = [first.get_reconfigure_handle(), late.backend.get_reconfigure_handle()]
    attempt = one.begin(2, handles)
    with pytest.raises(StepAbandoned):
        attempt.wait(lambda: True)

    assert one.free() is not first
    form(3, one, other)
    assert both(one.sum, other.sum) == [3.0, 3.0]

    late.begin(2, handles).wait(lambda: False)
    attempt.wait(lambda: False)
    assert both(one.sum, other.sum) == [3.0, 3.0], "an attempt that succeeds late took the place of a newer one"


def test_a_backend_is_used_again_once_its_attempt_is_over() -> None:
    store = HashStore()
    one, absent = Side(store, 0), gloo(store, 1)
    first = one.backend
    attempts = [stuck(one, 1, absent)]
    second = one.free()
    attempts.append(stuck(one, 2, absent))
    attempts[0]._over.set()
    assert one.free() is first
    assert one.group._get_backend(CPU) is first
    attempts[1]._over.set()
    assert one.free() is first
    assert second is not first


def test_too_many_stuck_attempts_are_told() -> None:
    store = HashStore()
    one, absent = Side(store, 0), gloo(store, 1)
    for number in range(4):
        stuck(one, number + 1, absent)
        one.free()
    stuck(one, 5, absent)
    with pytest.raises(RegroupError, match="still stuck"):
        one.free()
