"""The fence where the host runs ahead of its device: a rank arrives when its device does.

An event is recorded behind everything that the body has queued. When the device has come to it, and only then, the
flags are looked at: was the generation abandoned, is any communicator in an error state? Both are set before a
communicator is aborted. So a rank whose collectives were broken off, by itself or by its engine, never arrives; and as
no rank passes before all have arrived, no rank applies what such a collective has left behind, on whichever rank it
seemed to end well. That holds only if every world is fenced, and if a step is committed only when some rank holds the
next state (`devices.contract`, `asynchronous`).
"""

import time
from collections.abc import Callable

from understudy.devices.contract import Device
from understudy.errors import StepAbandoned
from understudy.foundation.ids import StepNumber
from understudy.groups.fence import BEFORE_CHANGE, GroupFence, SharedFence

_LOOK_AGAIN_AFTER, _AT_MOST, _GROWTH = 0.00005, 0.001, 1.2  # seconds


def comes_to_its_end(device: Device, lost_contact: Callable[[], bool]) -> bool:
    """Wait until everything has run that is queued now. Did it, without any loss of contact before its end?"""
    event, pause = device.record(), _LOOK_AGAIN_AFTER
    while not event.complete():
        if lost_contact():
            return False
        time.sleep(pause)
        pause = min(_AT_MOST, pause * _GROWTH)
    return not lost_contact()


class DeviceFence:
    """In front of the `fence` at which the processes meet."""

    def __init__(self, fence: SharedFence | GroupFence, device: Device) -> None:
        self._fence, self._device = fence, device

    def meet(self, step: StepNumber, lost_contact: Callable[[], bool], place: int = BEFORE_CHANGE) -> None:
        """StepAbandoned if this rank cannot arrive any more: no other rank has seen it arrive."""
        if not comes_to_its_end(self._device, lost_contact):
            raise StepAbandoned(f"step {step} is abandoned before its fence")
        self._fence.meet(step, lost_contact, place)

    def remove(self) -> None:
        self._fence.remove()
