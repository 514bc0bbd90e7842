"""The donor's side of a transfer: show what there is, then serve the receiver's orders until it is content."""

from collections.abc import Mapping

import msgspec
import torch

from understudy.errors import TransferError
from understudy.state.contents import contents_of
from understudy.state.digests import digest_one
from understudy.state.lanes import send_in_bunches
from understudy.state.mail import Mail
from understudy.state.manifest import Inventory, Protected
from understudy.state.parcels import SMALL, FlatViews, Parcel, Part, chunks_of
from understudy.state.same_host import Landmark


class Request(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A receiver's order. Parts are (path, start, length). `read`: it reads chunks from our memory by itself."""

    give: list[list[tuple[str, int, int]]]
    vouch: list[list[tuple[str, int, int]]]
    read: bool


class Content(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The receiver has everything. `distrusted`: ranks whose bytes differ from those of the others."""

    distrusted: list[int]


class Damaged(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    why: str


Word = Request | Content | Damaged


class Outgoing:
    """What a donor will send. Taking digests is the slow part; a donor can do it while it waits for its receiver."""

    def __init__(self, source: Protected | Inventory, units: Mapping[str, int] | None = None, host: str = "") -> None:
        self.inventory = source if isinstance(source, Inventory) else source.inventory()
        self.landmark = Landmark()
        self._units, self._host = units or {}, host
        self._digests: dict[Part, bytes] = {}
        self._flat = FlatViews(self.inventory.tensors)

    def take_digests(self) -> None:
        for path, tensor in self.inventory.tensors.items():
            if tensor.nbytes >= SMALL:
                for part in chunks_of(path, tensor.nbytes):
                    self.digest((part,))

    def digest(self, parcel: Parcel) -> bytes:
        if len(parcel) > 1:
            return digest_one(self.bytes_of(parcel))
        if parcel[0] not in self._digests:
            self._digests[parcel[0]] = digest_one(self.bytes_of(parcel))
        return self._digests[parcel[0]]

    def bytes_of(self, parcel: Parcel) -> torch.Tensor:
        """Without a copy where the parcel is one part of a tensor in plain memory."""
        parts = [self._flat.slice_of(part) for part in parcel]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def give_to(self, mail: Mail, receiver: int) -> None:
        contents = contents_of(self.inventory, self._units, self.landmark, self._host)
        mail.post_text(msgspec.msgpack.encode(contents), receiver)
        while True:
            match msgspec.msgpack.decode(mail.receive_text(receiver), type=Word):
                case Request() as request:
                    self._serve(mail, receiver, request)
                case Damaged(why=why):
                    raise TransferError(f"rank {receiver} could not take the state of this rank: {why}")
                case Content():
                    return  # until now our memory had to stay as it is

    def _serve(self, mail: Mail, receiver: int, request: Request) -> None:
        given = [_parcel(parts) for parts in request.give]
        sent = (self.bytes_of(parcel) for parcel in given if len(parcel) > 1 or not request.read)
        send_in_bunches(mail, receiver, sent)
        vouched = [_parcel(parts) for parts in request.vouch]
        digests = bytearray().join(self.digest(parcel) for parcel in (*given, *vouched))
        if digests:
            mail.post(torch.frombuffer(digests, dtype=torch.uint8), receiver)


def _parcel(parts: list[tuple[str, int, int]]) -> Parcel:
    return tuple(Part(*part) for part in parts)
