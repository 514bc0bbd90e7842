"""The device that runs behind this process's host, if there is one. `join()` chooses it once.

What is not a part of a member asks here: random streams, and what reads the bytes of a tensor. On the CPU, and
before a device is chosen, there is none.
"""

from collections.abc import Callable, Sequence

from understudy.devices.contract import Device

_devices: tuple[Device, ...] = ()  # none or one
_settle: Callable[[], None] | None = None


def begin(device: Device) -> None:
    """The script trains on it."""
    global _devices
    _devices = (device,) if device.asynchronous else ()


def settle_by(settle: Callable[[], None]) -> None:
    """`settle` returns when everything that is queued has run."""
    global _settle
    _settle = settle


def devices() -> Sequence[Device]:
    return _devices


def settle() -> None:
    """Everything that was queued so far has run. For readers in any thread."""
    if _settle is not None:
        _settle()
