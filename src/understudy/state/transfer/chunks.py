"""How state is cut into chunks: a segment of a large tensor, or several small tensors; and which donor sends which."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from understudy.devices.memory import in_host_memory

CHUNK = 2 * 1024 * 1024
"""So small that it is still in the processor's cache when its digest is taken, right after it came."""
SMALL = 64 * 1024


@dataclass(frozen=True, slots=True)
class Segment:
    """Some bytes of one tensor."""

    path: str
    start: int
    length: int


Chunk = tuple[Segment, ...]
"""What is asked for at once."""


def segments_of(path: str, size: int, most: int = CHUNK) -> list[Segment]:
    return [Segment(path, start, min(most, size - start)) for start in range(0, size, most)]


class FlatViews:
    """Tensors as rows of bytes. The view of the last one is kept, for its next chunk: only one, because it is a copy
    where the tensor is not contiguous. May be used by several threads."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._last: tuple[str, torch.Tensor] = ("", torch.empty(0))

    def view_of(self, segment: Segment) -> torch.Tensor:
        """In the tensor's own memory."""
        path, view = self._last
        if path != segment.path:
            view = self._tensors[segment.path].contiguous().reshape(-1).view(torch.uint8)
            self._last = segment.path, view
        return view[segment.start : segment.start + segment.length]

    def slice_of(self, segment: Segment) -> torch.Tensor:
        """In host memory."""
        piece = self.view_of(segment)
        return piece if in_host_memory(piece) else piece.cpu()

    def together(self, chunk: "Chunk") -> torch.Tensor:
        """All of a chunk, in the tensors' own memory. Without a copy if it is one segment."""
        pieces = [self.view_of(segment) for segment in chunk]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def take_apart(self, chunk: "Chunk", content: torch.Tensor) -> None:
        """Of a chunk that was put together: each segment to its own tensor."""
        if len(chunk) == 1:
            return
        place = 0
        for segment in chunk:
            self.view_of(segment).copy_(content[place : place + segment.length])
            place += segment.length


def size_of(chunk: Chunk) -> int:
    return sum(segment.length for segment in chunk)


@dataclass(slots=True)
class Order:
    """What one donor does: which chunks it gives, and for which it only tells the digest."""

    give: list[Chunk]
    vouch: list[Chunk]


def make_chunks(
    sizes: Mapping[str, int], holders: Mapping[str, tuple[int, ...]], most: int = CHUNK
) -> list[tuple[Chunk, tuple[int, ...]]]:
    """Every byte in one chunk, with the donors that hold all of it. `most`: bytes of a large tensor's chunk."""
    chunks: list[tuple[Chunk, tuple[int, ...]]] = []
    small: dict[tuple[int, ...], list[Segment]] = {}
    for path, size in sizes.items():
        if size >= SMALL:
            chunks += [((segment,), holders[path]) for segment in segments_of(path, size, most)]
        elif size:
            together = small.setdefault(holders[path], [])
            together.append(Segment(path, 0, size))
            if sum(segment.length for segment in together) >= most:
                chunks.append((tuple(small.pop(holders[path])), holders[path]))
    return chunks + [(tuple(segments), donors) for donors, segments in small.items()]


def place_orders(
    chunks: Sequence[tuple[Chunk, tuple[int, ...]]],
    donors: Sequence[int],
    *,
    spread: bool,
    vouchers: int,
    distrusted: frozenset[int],
) -> dict[int, Order]:
    """With `spread` each chunk goes to the holder with the least to give so far, else to the first one. `vouchers`:
    how many other holders tell the digest of a chunk."""
    orders = {donor: Order([], []) for donor in donors}
    load = dict.fromkeys(donors, 0)
    for chunk, holders in chunks:
        trusted = [donor for donor in holders if donor not in distrusted]
        giver = min(trusted, key=lambda donor: load[donor]) if spread else trusted[0]
        load[giver] += size_of(chunk)
        orders[giver].give.append(chunk)
        for voucher in [donor for donor in holders if donor != giver][:vouchers]:
            orders[voucher].vouch.append(chunk)
    return orders
