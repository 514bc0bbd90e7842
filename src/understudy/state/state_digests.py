"""The two ways to take digests of state: xxh3 of bytes in host memory, and sums of words where the bytes are.

What ranks of one job compare with each other (twins, chunks of a transfer) is taken by the way of their device: sums of
words where the device runs behind its host, so that only sixteen bytes of each tensor come to the host; xxh3 elsewhere,
as ever. What is written to the ledger may be taken the other way (`--ledger-digests`), so that a run on a device and
one on CPUs can be compared. Each way takes all tensors of a state alike, wherever they are.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
import xxhash

from understudy.devices.contract import Device
from understudy.ledger.digest_kinds import MARKS, WORD_SUMS, XXH3
from understudy.state import word_sums
from understudy.state.digests import digest_one, digest_tensors


class StateDigests(Protocol):
    """`mark`: what a digest in text begins with."""

    mark: str

    def each(self, tensors: Sequence[torch.Tensor]) -> list[bytes]:
        """Of each 16 bytes, over its bytes alone."""
        ...

    def together(self, named: Iterable[tuple[str, torch.Tensor]]) -> str:
        """One digest over names, types, shapes and bytes."""
        ...


class Xxh3:
    mark = MARKS[XXH3]

    def each(self, tensors: Sequence[torch.Tensor]) -> list[bytes]:
        return [digest_one(tensor) for tensor in tensors]

    def together(self, named: Iterable[tuple[str, torch.Tensor]]) -> str:
        return digest_tensors(named)


class WordSums:
    mark = MARKS[WORD_SUMS]

    def each(self, tensors: Sequence[torch.Tensor]) -> list[bytes]:
        return word_sums.digest_all(tensors)

    def together(self, named: Iterable[tuple[str, torch.Tensor]]) -> str:
        """All tensors at once: each wait for a device costs as much as many sums."""
        listed = list(named)
        state = xxhash.xxh3_128()
        for (name, tensor), digest in zip(listed, self.each([tensor for _, tensor in listed]), strict=True):
            state.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
            state.update(digest)
        return self.mark + state.hexdigest()


BY_XXH3, BY_WORD_SUMS = Xxh3(), WordSums()


def digests_of(device: Device) -> StateDigests:
    """What ranks on such a device tell each other."""
    return BY_WORD_SUMS if device.asynchronous else BY_XXH3


def ledger_digests(wanted: str, device: Device) -> StateDigests:
    """`wanted`: the name of a kind; another word (`auto`) leaves it to the device."""
    by_name: dict[str, StateDigests] = {XXH3: BY_XXH3, WORD_SUMS: BY_WORD_SUMS}
    return by_name.get(wanted, digests_of(device))
