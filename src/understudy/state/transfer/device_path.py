"""Chunks of state that go from device to device by the default group, from storage to storage, without the host.

Only bytes come this way. What a donor holds, what a receiver asks for and every digest of sixteen bytes go by the
channel, in host memory. All that is done here is queued: a chunk lands behind whatever was queued before, and its
digest is reckoned behind it, where it is. Few chunks are on their way at once, because what is put together for them
takes memory of the device.

A lost rank does not raise here: the queue stands until the communicators are broken, and goes on with garbage. So when
everything has run that is queued, the flags are looked at (`groups.device_fence`), and nothing is believed unless no
contact was lost before. The digests come after that.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import TypeVar

import torch

from understudy.errors import StepAbandoned
from understudy.state.state_digests import BY_WORD_SUMS
from understudy.state.transfer.chunks import Chunk, FlatViews, size_of
from understudy.state.transfer.p2p import Carrier

CHUNK = 128 * 1024 * 1024
"""Untested: large enough to keep a fast link busy, and so small that two of them are no matter on a device."""
TOGETHER = 4
"""Chunks on their way at once."""


Thing = TypeVar("Thing")


class DevicePath:
    """`where`: this member's device. `carrier`: by groups of the device. `come_to_end`: waits until everything has run
    that is queued now; False when contact was lost meanwhile."""

    def __init__(
        self, where: torch.device, carrier: Carrier, come_to_end: Callable[[], bool], chunk: int | None = None
    ) -> None:
        self._where, self._carrier, self._come_to_end = where, carrier, come_to_end
        self.chunk = chunk or CHUNK

    def new(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device=self._where)

    def digests(self, flat: FlatViews, chunks: Sequence[Chunk]) -> list[bytes]:
        return [
            digest
            for some in _together(chunks)
            for digest in BY_WORD_SUMS.each([flat.together(chunk) for chunk in some])
        ]

    def send(self, flat: FlatViews, chunks: Sequence[Chunk], to: int) -> None:
        """What is sent must not change until `to` is content."""
        for some in _together(chunks):
            contents = [flat.together(chunk) for chunk in some]
            for message in [self._carrier.send(content, to) for content in contents]:
                message.wait()  # orders the queue
            self._finish()

    def receive(self, flat: FlatViews, chunks: dict[int, list[Chunk]]) -> Iterator[tuple[Chunk, bytes]]:
        """From all donors in turns: each chunk, with the digest of what has arrived."""
        turns = zip_longest(*([(donor, chunk) for chunk in own] for donor, own in chunks.items()))
        for some in _together(one for turn in turns for one in turn if one is not None):
            yield from self._receive(flat, some)

    def _receive(self, flat: FlatViews, some: Sequence[tuple[int, Chunk]]) -> list[tuple[Chunk, bytes]]:
        landings = [self._landing(flat, chunk) for _, chunk in some]
        for (donor, _), landing in zip(some, landings, strict=True):
            self._carrier.receive(landing, donor).wait()  # orders the queue
        self._finish()
        for (_, chunk), landing in zip(some, landings, strict=True):
            flat.take_apart(chunk, landing)
        return list(zip([chunk for _, chunk in some], BY_WORD_SUMS.each(landings), strict=True))

    def _landing(self, flat: FlatViews, chunk: Chunk) -> torch.Tensor:
        """Its own storage if it is a segment of one tensor."""
        return flat.view_of(chunk[0]) if len(chunk) == 1 else self.new([size_of(chunk)], torch.uint8)

    def _finish(self) -> None:
        if not self._come_to_end():
            raise StepAbandoned("contact was lost in the middle of a transfer")


def _together(things: Iterable[Thing]) -> Iterator[list[Thing]]:
    left = iter(things)
    while some := list(islice(left, TOGETHER)):
        yield some
