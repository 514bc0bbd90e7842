"""Random numbers: seeds that are a function of (seed, step, rank), and the streams of the process as plain data.

By default every attempt begins with derived seeds, so that a replacement needs no state of its predecessor. A script
that keeps its own streams has them captured and restored. The streams are those of torch (the CPU, and the device in
use), Python and NumPy.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from understudy.devices import in_use


def derived_seed(seed: int, step: int, rank: int) -> int:
    """A number for one rank in one step; the same for every attempt and every member that holds the rank."""
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_all(value: int) -> None:
    """torch (the CPU, and the device in use), Python and NumPy.

    Not `torch.manual_seed`: without a GPU it keeps a stack trace for each kind of device at every call, for the day on
    which that device is initialised. That costs a millisecond per step and never ends.
    """
    torch.default_generator.manual_seed(value)
    for device in in_use.devices():
        device.seed(value)
    random.seed(value)
    np.random.seed(value % (1 << 32))


def capture_streams() -> dict[str, Any]:
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, internal, gauss_next = random.getstate()
    return {
        "torch": torch.default_generator.get_state(),
        "python": [version, list(internal), gauss_next],
        "numpy": [kind, np.asarray(keys).tobytes(), int(position), int(has_gauss), float(gauss)],
        **{device.name: device.random_streams() for device in in_use.devices()},
    }


def restore_streams(streams: dict[str, Any]) -> None:
    torch.default_generator.set_state(streams["torch"])
    for device in in_use.devices():
        if kept := streams.get(device.name):
            device.set_random_streams(kept)
    version, internal, gauss_next = streams["python"]
    random.setstate((version, tuple(internal), gauss_next))
    kind, keys, position, has_gauss, gauss = streams["numpy"]
    np.random.set_state((kind, np.frombuffer(keys, dtype=np.uint32), position, has_gauss, gauss))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Whatever happens inside leaves the streams as they were."""
    before = capture_streams()
    try:
        yield
    finally:
        restore_streams(before)
