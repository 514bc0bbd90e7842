"""The donor's side of a transfer: show what there is, then serve the receiver's orders until it is content."""

from collections.abc import Mapping, Sequence

import msgspec
import torch

from understudy.errors import TransferError
from understudy.state.digests import digest_one
from understudy.state.protected_state import Inventory, Protected
from understudy.state.transfer.chunks import SMALL, Chunk, FlatViews, Segment, segments_of
from understudy.state.transfer.device_path import DevicePath
from understudy.state.transfer.manifest import manifest_of
from understudy.state.transfer.p2p import Channel
from understudy.state.transfer.vm_read import Landmark
from understudy.state.transfer.window import send_windowed


class Request(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A receiver's order. A chunk is a list of segments (path, start, length). `read`: it reads chunks from our memory
    by itself. `give_by_device`, `vouch_on_device`: chunks for the device path, if we have said that we have one."""

    give: list[list[tuple[str, int, int]]]
    vouch: list[list[tuple[str, int, int]]]
    read: bool
    give_by_device: list[list[tuple[str, int, int]]] = []
    vouch_on_device: list[list[tuple[str, int, int]]] = []


class Content(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The receiver has everything. `distrusted`: ranks whose bytes differ from those of the others."""

    distrusted: list[int]


class Damaged(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    why: str


Word = Request | Content | Damaged


class Sender:
    """What a donor will send. The digests are the slow part, so a donor takes them while it waits for its receiver."""

    def __init__(self, source: Protected | Inventory, units: Mapping[str, int] | None = None, host: str = "") -> None:
        self.inventory = source if isinstance(source, Inventory) else source.inventory()
        self.landmark = Landmark()
        self._units, self._host = units or {}, host
        self._digests: dict[Segment, bytes] = {}
        self._digests_on_device: dict[Chunk, bytes] = {}
        self._flat = FlatViews(self.inventory.tensors)

    def take_digests(self, path: DevicePath | None = None) -> None:
        """`path`: where what is on the device will go."""
        of_device = self.inventory.of_device if path is not None else frozenset[str]()
        large = [(name, tensor.nbytes) for name, tensor in self.inventory.tensors.items() if tensor.nbytes >= SMALL]
        for name, size in large:
            if name not in of_device:
                for segment in segments_of(name, size):
                    self.digest((segment,))
        if path is not None:
            parts = [
                segment for name, size in large if name in of_device for segment in segments_of(name, size, path.chunk)
            ]
            self._digest_on_device(path, [(segment,) for segment in parts])

    def digest(self, chunk: Chunk) -> bytes:
        if len(chunk) > 1:
            return digest_one(self.bytes_of(chunk))
        if chunk[0] not in self._digests:
            self._digests[chunk[0]] = digest_one(self.bytes_of(chunk))
        return self._digests[chunk[0]]

    def _digest_on_device(self, path: DevicePath, chunks: Sequence[Chunk]) -> list[bytes]:
        missing = [chunk for chunk in chunks if chunk not in self._digests_on_device]
        self._digests_on_device.update(zip(missing, path.digests(self._flat, missing), strict=True))
        return [self._digests_on_device[chunk] for chunk in chunks]

    def bytes_of(self, chunk: Chunk) -> torch.Tensor:
        """Without a copy where the chunk is one segment of a tensor in plain memory."""
        segments = [self._flat.slice_of(segment) for segment in chunk]
        return segments[0] if len(segments) == 1 else torch.cat(segments)

    def send_to(self, channel: Channel, receiver: int, path: DevicePath | None = None) -> None:
        """`path`: the way for what is on the device, where there is one beside the channel."""
        manifest = manifest_of(self.inventory, self._units, self.landmark, self._host, by_device=path is not None)
        channel.send_bytes(msgspec.msgpack.encode(manifest), receiver)
        while True:
            match msgspec.msgpack.decode(channel.receive_bytes(receiver), type=Word):
                case Request() as request:
                    self._serve(channel, receiver, request)
                    if path is not None:
                        self._serve_by_device(channel, receiver, request, path)
                case Damaged(why=why):
                    raise TransferError(f"rank {receiver} could not take the state of this rank: {why}")
                case Content():
                    return  # until now our memory had to stay as it is

    def _serve(self, channel: Channel, receiver: int, request: Request) -> None:
        given = [_chunk(segments) for segments in request.give]
        sent = (self.bytes_of(chunk) for chunk in given if len(chunk) > 1 or not request.read)
        send_windowed(channel, receiver, sent)
        vouched = [_chunk(segments) for segments in request.vouch]
        _tell(channel, receiver, [self.digest(chunk) for chunk in (*given, *vouched)])

    def _serve_by_device(self, channel: Channel, receiver: int, request: Request, path: DevicePath) -> None:
        """The digests first: behind the chunks they would wait until those have gone."""
        given = [_chunk(segments) for segments in request.give_by_device]
        vouched = [_chunk(segments) for segments in request.vouch_on_device]
        _tell(channel, receiver, self._digest_on_device(path, [*given, *vouched]))
        path.send(self._flat, given, receiver)


def _tell(channel: Channel, receiver: int, digests: list[bytes]) -> None:
    if digests:
        channel.send(torch.frombuffer(bytearray().join(digests), dtype=torch.uint8), receiver)


def _chunk(segments: list[tuple[str, int, int]]) -> Chunk:
    return tuple(Segment(*segment) for segment in segments)
