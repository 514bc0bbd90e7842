"""Memory that a spare keeps ready: pages that were touched once need no page faults when a rank is taken over.

A joiner allocates everything that a rank holds (parameters, gradients, optimizer state, buckets) within a moment. On a
CPU, half of that moment is the kernel handing out and clearing fresh pages. A spare therefore touches as much memory as
a rank holds and gives it back to the allocator, which is told to keep it. On other C libraries than glibc nothing
happens.
"""

import ctypes

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # parameters of glibc's mallopt
_KEEP_ALL = 2**31 - 1
# Where glibc's own, moving thresholds end up in a process that has freed large tensors. Its initial values would make
# every activation over 128 KiB a mapping of its own, and this rank slower than the others.
_AS_IN_A_LONG_RUN = {_MMAP_MAX: 65536, _MMAP_THRESHOLD: 32 * 2**20, _TRIM_THRESHOLD: 64 * 2**20}


def touch(count: int) -> None:
    """Make `count` bytes resident and keep them inside this process."""
    if not _mallopt(_MMAP_MAX, 0) or not _mallopt(_TRIM_THRESHOLD, _KEEP_ALL):
        return
    block = torch.empty(count, dtype=torch.uint8)
    block[::4096] = 1
    del block


def use_normally() -> None:
    """The rank is taken over and has committed: memory that is freed from now on goes back to the system as usual."""
    for parameter, value in _AS_IN_A_LONG_RUN.items():
        _mallopt(parameter, value)


def _mallopt(parameter: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL(None).mallopt(parameter, value))
    except (OSError, AttributeError):
        return False
