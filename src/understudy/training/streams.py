"""The script's own random streams, as plain data: torch (the CPU and every GPU in use), Python and NumPy."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, internal, gauss_next = random.getstate()
    return {
        "torch": torch.default_generator.get_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],  # type: ignore[no-untyped-call]
        "python": [version, list(internal), gauss_next],
        "numpy": [kind, np.asarray(keys).tobytes(), int(position), int(has_gauss), float(gauss)],
    }


def restore(streams: dict[str, Any]) -> None:
    torch.default_generator.set_state(streams["torch"])
    if streams["cuda"]:
        torch.cuda.set_rng_state_all(streams["cuda"])
    version, internal, gauss_next = streams["python"]
    random.setstate((version, tuple(internal), gauss_next))
    kind, keys, position, has_gauss, gauss = streams["numpy"]
    np.random.set_state((kind, np.frombuffer(keys, dtype=np.uint32), position, has_gauss, gauss))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Whatever happens inside leaves the streams as they were."""
    before = capture()
    try:
        yield
    finally:
        restore(before)
