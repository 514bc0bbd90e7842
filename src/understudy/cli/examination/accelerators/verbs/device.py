"""What one device does, asked through the seam of devices, so that an emulated one can be asked as well."""

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from understudy.cli.examination.accelerators.verbs.held import Held
from understudy.devices import choosing, in_use
from understudy.groups.device_fence import comes_to_its_end
from understudy.state import word_sums

_OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, fused=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, fused=True),
}


def was_forked_well(held: Held) -> dict[str, Any]:
    """Has the process from which this one was forked touched a device? Asked before this one does."""
    spoilt = choosing.spoilt_by_fork() or (held.device is not None and held.device.spoilt_by_fork())
    return {"spoilt": spoilt}


def fence_cost(held: Held, rounds: int) -> dict[str, Any]:
    """Seconds that the host waits for an event of its own: with nothing queued, and behind one small operation."""
    device, tensor = held.taken(), torch.zeros(1024, device=held.where)
    device.drain(30.0)
    idle, behind = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        comes_to_its_end(device, lambda: False)
        idle.append(time.perf_counter() - began)
        tensor += 1.0
        began = time.perf_counter()
        comes_to_its_end(device, lambda: False)
        behind.append(time.perf_counter() - began)
    return {"idle_us": 1e6 * statistics.median(idle), "behind_one_us": 1e6 * statistics.median(behind)}


def found_inf(held: Held) -> dict[str, Any]:
    """By optimizer: does a fused step leave everything as it was when a flag on the device says so, and is it made when
    the flag is down?"""
    return {name: _obeys_a_flag(held, make) for name, make in _OPTIMIZERS.items()}


def _obeys_a_flag(held: Held, make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]) -> dict[str, bool]:
    parameter = torch.nn.Parameter(torch.ones(1000, device=held.where))
    optimizer: Any = make([parameter])
    flag = torch.zeros((), device=held.where)
    optimizer.grad_scale, optimizer.found_inf = None, flag

    def step() -> list[torch.Tensor]:
        parameter.grad = torch.full((1000,), 0.5, device=held.where)
        optimizer.step()
        held.taken().drain(30.0)
        state = optimizer.state[parameter].values()
        return [tensor.detach().cpu().clone() for tensor in (parameter, *state) if torch.is_tensor(tensor)]

    before = step()  # the first one makes the state; a skipped first step of SGD would leave it uninitialised
    flag.fill_(1.0)
    skipped = step()
    flag.fill_(0.0)
    made = step()
    return {"skipped": _same(before, skipped), "made": not torch.equal(made[0], before[0])}


def _same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def _word_sums(tensor: torch.Tensor) -> bytes:
    return word_sums.digest_all([tensor])[0]


def digests(held: Held, megabytes: int, rounds: int) -> dict[str, Any]:
    """The digest on the device, how fast it is, and the one of the same bytes on the host."""
    device = held.taken()
    in_use.begin(device)  # as a job does: digests ask there whose a tensor's memory is, and wait for its queue
    in_use.settle_by(lambda: device.drain(None))
    numbers = torch.arange(megabytes << 18, dtype=torch.int32)
    tensor = numbers.to(held.where)
    on_device = _word_sums(tensor)  # also makes its multipliers
    began = time.perf_counter()
    for _ in range(rounds):
        _word_sums(tensor)
    seconds = (time.perf_counter() - began) / rounds
    on_host: list[bytes] = []
    copy = tensor.cpu()
    beside = threading.Thread(target=lambda: on_host.append(_word_sums(copy)))  # an emulated device is not used there
    beside.start()
    beside.join()
    changed = tensor.clone()
    changed[megabytes << 17] ^= 1
    return {
        "same": on_host == [on_device],
        "sees_a_bit": _word_sums(changed) != on_device,
        "gb_per_s": tensor.nbytes / seconds / 1e9,
    }
