"""Digests that a device computes where the bytes are: equal bytes have the same digest on every kind of device.

xxh3 (`digests`) reads bytes in host memory, so state on a device would be copied there first. Here a tensor is read as
64-bit words, each is multiplied by an odd number that depends on its place, and all are added up modulo 2**64; two such
sums, with other multipliers, make 128 bits. Integer addition does not depend on the order in which a device adds, so
the result is the same everywhere. A change of any one word changes both sums for certain, because an odd factor has an
inverse modulo 2**64. Like xxh3 this is no defence against an adversary.

Everything is made out of the tensors themselves, so it is done in their memory, and behind what is queued there. Small
tensors are put together first: a device takes as long to begin a sum as to add up a megabyte.
"""

import itertools
import struct
from collections.abc import Iterator, Sequence

import torch
import xxhash

from understudy.devices import in_use
from understudy.devices.memory import on_device

CHUNK = 1 << 19
"""Words that are multiplied at once: 4 MB, so that the multipliers stay in a cache."""

_STREAMS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_WORD = 8

_kept: dict[tuple[torch.device, bool, int, int], torch.Tensor] = {}
"""Multipliers, by where they are, how many, and of which places."""


def digest_all(tensors: Sequence[torch.Tensor]) -> list[bytes]:
    """Of each, 16 bytes. Type and shape are not in it: the length in bytes is."""
    sides = [on_device(tensor) for tensor in tensors]
    queued = {
        side: _sums([tensor for tensor, its in zip(tensors, sides, strict=True) if its is side]) for side in {*sides}
    }
    in_use.settle()
    sums = {side: iter(of_side.cpu().tolist()) for side, of_side in queued.items()}
    return [
        xxhash.xxh3_128_digest(struct.pack("<qqq", *next(sums[side]), tensor.nbytes))
        for tensor, side in zip(tensors, sides, strict=True)
    ]


def _sums(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Two words of each, in the tensors' memory, which is the same for all."""
    rows = [
        _of_small(batch) if len(batch) > 1 or _words_in(batch[0]) <= CHUNK else _of_large(batch[0])
        for batch in _batches(tensors)
    ]
    return torch.cat(rows)


def _batches(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Neighbours that are one chunk at most, all together."""
    batch: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        words = _words_in(tensor)
        if batch and size + words > CHUNK:
            yield batch
            batch, size = [], 0
        batch.append(tensor)
        size += words
    yield batch


def _of_small(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sums of each are differences of sums that run over all: modulo 2**64 nothing is lost by that."""
    words = _words(tensors)
    counts = [_words_in(tensor) for tensor in tensors]
    factors = torch.cat([_odd_numbers(words, max(counts), 0)[:, :count] for count in counts], dim=1)
    running = torch.cat([words.new_zeros(len(_STREAMS), 1), (factors * words).cumsum(dim=1)], dim=1)
    at_ends = torch.stack([running[:, end] for end in itertools.accumulate(counts, initial=0)])
    return (at_ends[1:] - at_ends[:-1]) * _odd_numbers(words, 1, CHUNK)[:, 0]


def _of_large(tensor: torch.Tensor) -> torch.Tensor:
    words = _words([tensor])
    multipliers = _odd_numbers(words, CHUNK, 0)
    of_chunks = _odd_numbers(words, words.numel() // CHUNK + 1, CHUNK)
    total = words.new_zeros(len(_STREAMS))
    for number, chunk in enumerate(torch.split(words, CHUNK)):
        total += (multipliers[:, : chunk.numel()] * chunk).sum(dim=1) * of_chunks[:, number]
    return total[None]


def _words_in(tensor: torch.Tensor) -> int:
    return -(-tensor.nbytes // _WORD)


def _words(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bytes of each as 64-bit words, with zeros at the end. Not copied where it is one tensor that allows it."""
    contents = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
    if len(contents) == 1 and not (contents[0].numel() % _WORD or contents[0].storage_offset() % _WORD):
        return contents[0].view(torch.int64)
    zeros = contents[0].new_zeros(_WORD)
    padded = [part for content in contents for part in (content, zeros[: -content.numel() % _WORD])]
    return torch.cat(padded).view(torch.int64)


def _odd_numbers(like: torch.Tensor, count: int, first: int) -> torch.Tensor:
    """Of each stream so many at least, in the memory of `like`: well mixed, and odd, so that multiplying by one loses
    nothing."""
    key = (like.device, on_device(like), 1 << (count - 1).bit_length() if count else 1, first)
    if key not in _kept:
        _kept[key] = _made(like, key[2], first)
    return _kept[key]


def _made(like: torch.Tensor, count: int, first: int) -> torch.Tensor:
    places = like.new_ones(count, dtype=torch.int64).cumsum(dim=0) + first
    mixed = torch.stack([places * _signed(stream) for stream in _STREAMS])
    for shift, factor in ((30, _MIX[0]), (27, _MIX[1])):
        mixed = (mixed ^ _shifted(mixed, shift)) * _signed(factor)
    return (mixed ^ _shifted(mixed, 31)) | 1


def _shifted(numbers: torch.Tensor, by: int) -> torch.Tensor:
    """To the right, with zeros from the left: torch's own shift repeats the sign."""
    return (numbers >> by) & ((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
