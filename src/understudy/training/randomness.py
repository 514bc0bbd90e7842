"""Random numbers that need nobody's memory: every attempt begins with seeds derived from (seed, step, rank)."""

import hashlib
import random

import numpy as np
import torch


def derived_seed(seed: int, step: int, rank: int) -> int:
    """A number for one rank in one step; the same for every attempt and every member that holds the rank."""
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_all(value: int) -> None:
    """torch (the CPU and every GPU in use), Python and NumPy.

    Not `torch.manual_seed`: without a GPU it keeps a stack trace for each kind of device at every call, for the day on
    which that device is initialised. That costs a millisecond per step and never ends.
    """
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)
    random.seed(value)
    np.random.seed(value % (1 << 32))
