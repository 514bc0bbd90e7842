"""Which faults the driver has written into the kernel's log about the devices of this host. Never required.

Records are read as they come, without waiting, from the moment on at which the agent began; each is kept with the time
at which it was read. That the log may not be read is said once, and then nothing is known. Never run on a host with
devices.
"""

import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence

from understudy.detection import xids
from understudy.protocol.causes import DeviceFault
from understudy.wire.inventory import Device

KERNEL_LOG = "/dev/kmsg"
_READ_BYTES = 1 << 16
_MOST_READ = 1000  # records at one look
_MOST_KEPT = 1000


class DeviceLog:
    """`devices`: of this host; without any, nothing is opened."""

    def __init__(self, devices: Sequence[Device], say: Callable[[str], None], path: str = KERNEL_LOG) -> None:
        self._devices, self._path = tuple(devices), path
        self._seen: deque[tuple[float, xids.Xid]] = deque(maxlen=_MOST_KEPT)
        self._rest = ""
        self._log: int | None = None
        if not devices:
            return
        try:
            self._log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            say(
                f"the kernel's log cannot be read ({path}: {error.strerror}): of a lost device nothing is known "
                "but how its process ends"
            )
            return
        with contextlib.suppress(OSError):  # what is older says nothing about this job
            os.lseek(self._log, 0, os.SEEK_END)

    def close(self) -> None:
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def look(self, now: float) -> None:
        for _ in range(_MOST_READ):
            text = self._read()
            if text is None:
                return
            *lines, self._rest = (self._rest + text).split("\n")
            self._seen.extend((now, xid) for line in lines if (xid := xids.read_line(line)) is not None)

    def _read(self) -> str | None:
        """None: there is no more now."""
        if self._log is None:
            return None
        try:
            return os.read(self._log, _READ_BYTES).decode("utf-8", "replace") or None
        except BrokenPipeError:
            return ""  # records were overwritten before they were read: the next ones are there
        except BlockingIOError:
            return None
        except OSError:
            self.close()
            return None

    def fault_of(self, device: int, since: float) -> DeviceFault | None:
        """What was said of the device with this number since a process began."""
        buses = [known.pci_bus_id for known in self._devices if known.slot == device and known.pci_bus_id]
        return xids.gravest(
            [xid.code for at, xid in self._seen if at >= since and any(xids.same_place(xid.bus, bus) for bus in buses)]
        )
