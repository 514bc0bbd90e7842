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
    """torch (every device), Python and NumPy."""
    torch.manual_seed(value)
    random.seed(value)
    np.random.seed(value % (1 << 32))
