"""The fence that a device passes while its host runs ahead: an option for worlds in which all ranks are twins.

Behind the gradients each rank queues a sum over the world. It contributes a *nonce*, which belongs to this step of this
generation; a rank that has aborted a communicator of this generation contributes nothing. A rank's optimizer changes
the state only if its sum is that of all nonces: fused optimizers read that from the device (`found_inf`).

    gradients ─▶ the word is read ─▶ sum over the world ─▶ bad = (sum != size * nonce) ─▶ optimizer, unless bad

A rank that gets the whole sum knows that every rank's word was clean behind its gradients. The word goes up before
anything is aborted, so no rank had broken off those gradients, and they are genuine on all ranks. Garbage may get into
this sum too. It is never the whole one: that takes the nonce of every rank, and no older sum consists of this nonce. A
part of the ranks may get the whole sum, and others not: those learn it when they read their flags, which they do before
they report, and take the state from a twin (docs/protocol.md, where it is explored).

Knows nothing of optimizers and of what becomes of a step.
"""

import hashlib
import time
from collections.abc import Callable

import torch

from understudy.devices.deciding import DecidingDevice
from understudy.foundation.ids import Generation, StepNumber

_BITS = 46  # with 131,072 ranks the sum has 63 bits
_LOOK_AGAIN_AFTER, _AT_MOST, _GROWTH = 0.00005, 0.001, 1.2  # seconds
_BEFORE_ALL = Generation(-1)


def nonce_of(generation: int, step: int) -> int:
    """The same on all ranks, and not zero."""
    digest = hashlib.blake2b(f"{generation}/{step}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> (64 - _BITS)) | 1


class Flag:
    """Of one step. `bad`: on the device, 0.0 or 1.0, as fused optimizers take it."""

    def __init__(self, step: StepNumber, bad: torch.Tensor, device: DecidingDevice) -> None:
        self.step, self.bad = step, bad
        self._fetched = device.fetch(bad)

    def is_known(self) -> bool:
        return self._fetched.complete()

    def is_good(self) -> bool:
        """Asked once it is known: was the step applied here?"""
        return self._fetched.value() == 0.0


def await_flag(flag: Flag, lost_contact: Callable[[], bool]) -> bool:
    """False: contact is lost, and it is not known."""
    pause = _LOOK_AGAIN_AFTER
    while not flag.is_known():
        if lost_contact():
            return False
        time.sleep(pause)
        pause = min(_AT_MOST, pause * _GROWTH)
    return True


class DeviceSideFence:
    """`sum_over_world`: in place, in the order of the device; the host does not wait for it."""

    def __init__(self, device: DecidingDevice, size: int, sum_over_world: Callable[[torch.Tensor], object]) -> None:
        self._device, self._size, self._sum_over_world = device, size, sum_over_world
        self._word = device.word()
        self._generation = _BEFORE_ALL

    def begin(self, generation: Generation) -> None:
        """All groups of this generation are formed. An abort belongs to it from now on."""
        self._generation = generation

    def before_abort(self) -> None:
        """A communicator is about to be aborted, by us or by its engine. Called from any thread."""
        self._word.raise_to(self._generation)

    @torch.no_grad()
    def queue(self, step: StepNumber) -> Flag:
        nonce = nonce_of(self._generation, step)
        total = (self._word.read() < self._generation) * nonce
        self._sum_over_world(total)
        bad = (total != nonce * self._size).to(torch.float32).squeeze()
        return Flag(step, bad, self._device)
