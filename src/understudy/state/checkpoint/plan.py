"""Which rank writes which piece of a checkpoint. Pure: every rank derives the same answer from the plans of all ranks.

A piece that several ranks hold with the same bytes is written by one of them. Where ranks hold other bytes under the
same name (buffers of replicas, schedulers, pipeline stages or experts that are named alike), the lowest of them gives
the name its bytes, and the others' are stored under names of their own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from understudy.errors import CheckpointError
from understudy.state.checkpoint.folders import key_of

OWN = "__understudy__"
"""Under this name is everything that only Understudy reads."""

PICKLE = "pickle"
"""Stands where the type of a tensor would: a Python value, for other readers only. We write it and never read it."""

_PER_PIECE = 1024  # bytes that a piece takes beside its content, roughly

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets, sizes


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """What one rank holds of one tensor; see `checkpoint_folders.Stored`."""

    path: tuple[str | int, ...]
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    bytes: int
    digest: str
    aliases: tuple[tuple[str | int, ...], ...] = ()

    @property
    def box(self) -> Box:
        return self.offsets, self.sizes


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one rank holds. `attempt`: what tells this save from others of the same step."""

    format: int
    step: int
    attempt: str
    rank: int
    world_size: int
    pieces: list[Piece]


@dataclass(slots=True)
class Share:
    """What one rank writes: places in its plan, each with the path under which it is stored. `elsewhere`: as in
    `checkpoint_folders.Part`."""

    writes: list[tuple[int, tuple[str | int, ...]]] = field(default_factory=list)
    elsewhere: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Content:
    """The same bytes of the same piece, with its holders: each a rank and the place in its plan."""

    digest: str
    bytes: int
    path: tuple[str | int, ...]
    holders: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Named:
    """What is stored under a name: a tensor, in boxes that must fill it."""

    dtype: str
    shape: tuple[int, ...]
    boxes: dict[Box, _Content] = field(default_factory=dict)


def divide(plans: Sequence[Plan]) -> list[Share]:
    """The share of every rank. Raises if the pieces do not make up whole tensors."""
    shares = [Share() for _ in plans]
    named: dict[str, _Named] = {}
    others: dict[tuple[str, str, tuple[int, ...], Box, str], _Content] = {}
    for rank, plan in enumerate(plans):
        for place, piece in enumerate(plan.pieces):
            key = key_of(piece.path)
            known = named.setdefault(key, _Named(piece.dtype, piece.shape))
            content = None
            if (known.dtype, known.shape) == (piece.dtype, piece.shape):
                content = known.boxes.setdefault(piece.box, _Content(piece.digest, piece.bytes, piece.path))
            if content is None or content.digest != piece.digest:
                if piece.dtype == PICKLE:
                    continue
                own = (OWN, f"rank-{rank}", key)
                identity = (key, piece.dtype, piece.shape, piece.box, piece.digest)
                content = others.setdefault(identity, _Content(piece.digest, piece.bytes, own))
                shares[rank].elsewhere[key] = key_of(content.path)
            content.holders.append((rank, place))
    for key, tensor in named.items():
        if not _fills(tensor):
            raise CheckpointError(f"what the ranks hold of {key} does not make up a tensor of shape {tensor.shape}")
    _deal([*(content for tensor in named.values() for content in tensor.boxes.values()), *others.values()], shares)
    return shares


def _deal(contents: Sequence[_Content], shares: list[Share]) -> None:
    """Each to the one of its holders that has the least to write so far."""
    load = [0] * len(shares)
    for content in contents:
        rank, place = min(content.holders, key=lambda holder: (load[holder[0]], holder[0]))
        load[rank] += content.bytes + _PER_PIECE
        shares[rank].writes.append((place, content.path))


def _fills(tensor: _Named) -> bool:
    """Do the boxes form a grid that covers the tensor exactly once?"""
    if len(tensor.boxes) == 1:
        ((offsets, sizes),) = tensor.boxes
        return sizes == tensor.shape and not any(offsets)
    cells = 1
    for dimension, extent in enumerate(tensor.shape):
        intervals = sorted({(offsets[dimension], sizes[dimension]) for offsets, sizes in tensor.boxes})
        ends = [0, *(start + size for start, size in intervals)]
        if [start for start, _ in intervals] != ends[:-1] or ends[-1] != extent:
            return False
        cells *= len(intervals)
    return cells == len(tensor.boxes) and math.prod(tensor.shape) > 0
