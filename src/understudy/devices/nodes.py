"""Files of a driver that this process holds open. Imports no engine.

A driver gives a process its device through files in /dev. A process that holds one has begun something there with which
a forked process cannot go on. A library of the vendor opens the control file alone to count devices; that begins
nothing. Untested: there was no accelerator, and the names are those of NVIDIA's driver.
"""

import os
import re
from pathlib import Path

OF_DEVICES = re.compile(r"/dev/nvidia(?!ctl$).*")
OF_COMPUTING = re.compile(r"/dev/nvidia-uvm")
"""Opened when a process makes a context, which is when it is settled which devices it sees."""
_OPEN = Path("/proc/self/fd")


def held(pattern: re.Pattern[str], folder: Path = _OPEN) -> tuple[str, ...]:
    """Paths of open files that are wholly like `pattern`."""
    found: set[str] = set()
    try:
        descriptors = os.listdir(folder)
    except OSError:
        return ()
    for descriptor in descriptors:
        try:
            path = os.readlink(folder / descriptor)
        except OSError:
            continue  # it was closed meanwhile: the listing has one of its own
        if pattern.fullmatch(path):
            found.add(path)
    return tuple(sorted(found))


def computes() -> bool:
    """Has this process made a context?"""
    return bool(held(OF_COMPUTING))
