"""Which devices of ours this process has, before the script has chosen anything."""

from understudy.devices.contract import Device
from understudy.plugins import registry
from understudy.plugins.kinds import DEVICE


def ours() -> tuple[Device, ...]:
    return tuple(registry.ours(DEVICE).values())


def usual() -> Device:
    """The one on which a script trains that names no backend: an accelerator, where there is one."""
    return max((device for device in ours() if device.present()), key=lambda device: device.asynchronous)


def spoilt_by_fork() -> bool:
    """Asked in a forked process."""
    return any(device.spoilt_by_fork() for device in ours())
