"""An accelerator that is none: a queue under torch's dispatcher, and a backend of c10d with the contract of NCCL.

On a GPU the host runs ahead of the device, collectives do not raise when a peer is lost, and an abort lets what is
queued behind a collective go on with whatever is there. All of that can be had on CPUs, in real processes, and nastier:
what was not received is a pattern. See docs/queued-device.md.

    from understudy_testkit import queued_device

    device = queued_device.install(contagion=True)
    dist.init_process_group("queued", enable_reconfigure=True, ...)
"""

from understudy_testkit.queued_device.device import QueuedDevice
from understudy_testkit.queued_device.installing import install, installed, is_installed, uninstall
from understudy_testkit.queued_device.race_detector import DataRace
from understudy_testkit.queued_device.stream import DeviceFault, Event, QueueStands

__all__ = [
    "DataRace",
    "DeviceFault",
    "Event",
    "QueueStands",
    "QueuedDevice",
    "install",
    "installed",
    "is_installed",
    "uninstall",
]
