"""How state is cut up for its way: large tensors in chunks, small ones together; and who gives which parcel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

CHUNK = 2 * 1024 * 1024
"""So small that it is still in the processor's cache when its digest is taken, right after it came."""
SMALL = 64 * 1024


@dataclass(frozen=True, slots=True)
class Part:
    """Some bytes of one tensor."""

    path: str
    start: int
    length: int


Parcel = tuple[Part, ...]


def chunks_of(path: str, size: int) -> list[Part]:
    return [Part(path, start, min(CHUNK, size - start)) for start in range(0, size, CHUNK)]


class FlatViews:
    """Tensors as rows of bytes. The view of the last one is kept, for its next chunk: only one, because it is a copy
    where the tensor is not contiguous. May be used by several threads."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._last: tuple[str, torch.Tensor] = ("", torch.empty(0))

    def slice_of(self, part: Part) -> torch.Tensor:
        path, view = self._last
        if path != part.path:
            view = self._tensors[part.path].contiguous().reshape(-1).view(torch.uint8)
            self._last = part.path, view
        piece = view[part.start : part.start + part.length]
        return piece if piece.is_cpu else piece.cpu()


def size_of(parcel: Parcel) -> int:
    return sum(part.length for part in parcel)


@dataclass(slots=True)
class Order:
    """What one donor does: which parcels it gives, and for which it only tells the digest."""

    give: list[Parcel]
    vouch: list[Parcel]


def make_parcels(
    sizes: Mapping[str, int], holders: Mapping[str, tuple[int, ...]]
) -> list[tuple[Parcel, tuple[int, ...]]]:
    """Every byte in one parcel, with the donors that hold all of it."""
    parcels: list[tuple[Parcel, tuple[int, ...]]] = []
    small: dict[tuple[int, ...], list[Part]] = {}
    for path, size in sizes.items():
        if size >= SMALL:
            parcels += [((part,), holders[path]) for part in chunks_of(path, size)]
        elif size:
            together = small.setdefault(holders[path], [])
            together.append(Part(path, 0, size))
            if sum(part.length for part in together) >= CHUNK:
                parcels.append((tuple(small.pop(holders[path])), holders[path]))
    return parcels + [(tuple(parts), donors) for donors, parts in small.items()]


def place_orders(
    parcels: Sequence[tuple[Parcel, tuple[int, ...]]],
    donors: Sequence[int],
    *,
    spread: bool,
    vouchers: int,
    distrusted: frozenset[int],
) -> dict[int, Order]:
    """With `spread` each parcel goes to the holder with the least to give so far, else to the first one. `vouchers`:
    how many other holders tell the digest of a parcel."""
    orders = {donor: Order([], []) for donor in donors}
    load = dict.fromkeys(donors, 0)
    for parcel, holders in parcels:
        trusted = [donor for donor in holders if donor not in distrusted]
        giver = min(trusted, key=lambda donor: load[donor]) if spread else trusted[0]
        load[giver] += size_of(parcel)
        orders[giver].give.append(parcel)
        for voucher in [donor for donor in holders if donor != giver][:vouchers]:
            orders[voucher].vouch.append(parcel)
    return orders
