"""Moves state from live twins into a joiner's own storage, over the regrouped default group.

The first donor sends a table of contents and all small tensors in one buffer. Large tensors are read straight out of
the first donor's memory where the receiver may do that (the same host), otherwise they are spread over all donors and
go over the process group from storage to storage. Donors send the digests of what they hold, and the receiver checks
what it got against them. A new fault breaks the connections, so that a blocked transfer raises at once. A receiver's
state is torn from its first byte to the end, and whole while it waits for its turn.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from understudy.errors import TransferError
from understudy.state.contents import Contents, landing_place, receive_contents, send_contents, write_back
from understudy.state.digests import digest_one
from understudy.state.mail import Expected, Mail
from understudy.state.manifest import Inventory, Protected
from understudy.state.same_host import Landmark, Reader

SMALL = 64 * 1024
_SEND, _READ, _DONE, _DAMAGED = 1, 2, 3, 4  # what a receiver tells its donors


@dataclass(frozen=True, slots=True)
class _Share:
    """Which tensors travel how: `small` all from the first donor, `large` per donor."""

    small: list[str]
    large: list[list[str]]


class Outgoing:
    """What a donor will send. Taking digests is the slow part; a donor can do it while it waits for its receiver."""

    def __init__(self, protected: Protected) -> None:
        self.inventory = protected.inventory()
        self.landmark = Landmark()
        self._digests: dict[str, bytes] = {}

    def take_digests(self) -> None:
        for path, tensor in self.inventory.tensors.items():
            if _size(tensor) >= SMALL:
                self.digest(path)

    def digest(self, path: str) -> bytes:
        if path not in self._digests:
            self._digests[path] = digest_one(self.inventory.tensors[path])
        return self._digests[path]


def send_state(mail: Mail, outgoing: Outgoing, receiver: int, donor_place: int, donor_count: int) -> None:
    """Donor's side. `donor_place` is this rank's place in the list of donors."""
    first = donor_place == 0
    if first:
        send_contents(mail, outgoing.inventory, outgoing.landmark, receiver)
    reads = _hear(mail, receiver) == _READ
    if reads and not first:
        return
    share = _share(outgoing.inventory.tensors, 1 if reads else donor_count)
    _send_tensors(mail, outgoing, receiver, share, donor_place, large_too=not reads)
    if _hear(mail, receiver) != _DONE:  # until then our memory must stay as it is
        raise TransferError(f"what rank {receiver} got from this rank does not match its digest")


def _send_tensors(mail: Mail, outgoing: Outgoing, receiver: int, share: _Share, place: int, large_too: bool) -> None:
    """The small ones in one piece from the first donor, this donor's large ones, and the digests of all of them."""
    tensors = outgoing.inventory.tensors
    digests = bytearray()
    if place == 0:
        small = _pack([tensors[path] for path in share.small])
        mail.post(small, receiver)
        digests += digest_one(small)
    for path in share.large[place] if large_too else ():
        mail.post(_as_bytes(tensors[path].contiguous()), receiver)
    for path in share.large[place]:
        digests += outgoing.digest(path)
    if digests:
        mail.post(torch.frombuffer(digests, dtype=torch.uint8), receiver)


def receive_state(
    mail: Mail,
    protected: Protected,
    donors: Sequence[int],
    before_first_byte: Callable[[], None],
    read_memory: bool = True,
) -> int:
    """Receiver's side: everything lands in the protected objects. Returns the number of bytes that came."""
    contents = receive_contents(mail, donors[0])
    own = protected.inventory().tensors
    tensors = {line.path: landing_place(line, own.get(line.path)) for line in contents.lines}
    reader = contents.reader() if read_memory else None
    for donor in donors:
        _tell(mail, donor, _SEND if reader is None else _READ)
    if reader is not None:
        donors = donors[:1]
    share = _share(tensors, len(donors))
    small = torch.empty(sum(_size(tensors[path]) for path in share.small), dtype=torch.uint8)
    before_first_byte()
    if reader is None:
        arrived = _receive_tensors(mail, donors, tensors, share, small)
    else:
        arrived = _read_tensors(mail, donors[0], reader, contents, tensors, share, small)
    damaged = [str(donor) for donor, digests in zip(donors, arrived, strict=True) if not _matches(mail, donor, digests)]
    for donor in donors:
        _tell(mail, donor, _DAMAGED if damaged else _DONE)
    if damaged:
        raise TransferError(f"state from rank {', '.join(damaged)} does not match its digest")
    _unpack(small, [tensors[path] for path in share.small])
    write_back(own, tensors)
    protected.install(Inventory(tensors, contents.plain))
    return sum(_size(tensor) for tensor in tensors.values())


def _receive_tensors(
    mail: Mail, donors: Sequence[int], tensors: dict[str, torch.Tensor], share: _Share, small: torch.Tensor
) -> list[bytes]:
    """Over the process group, from all donors at once. Returns the digests of what each one sent."""
    landing = [[tensors[path] for path in part] for part in share.large]
    landing[0].insert(0, small)
    coming = [
        [mail.expect(_as_bytes(tensor), donor) for tensor in part] for donor, part in zip(donors, landing, strict=True)
    ]
    return [_digest_as_they_come(part, messages) for part, messages in zip(landing, coming, strict=True)]


def _read_tensors(
    mail: Mail,
    donor: int,
    reader: Reader,
    contents: Contents,
    tensors: dict[str, torch.Tensor],
    share: _Share,
    small: torch.Tensor,
) -> list[bytes]:
    """Out of the donor's memory, on all cores: the others wait for us. Returns the digests."""
    addresses = {line.path: line.address for line in contents.lines}

    def read(path: str) -> bytes:
        reader.read(addresses[path], tensors[path])
        return digest_one(tensors[path])

    coming = mail.expect(small, donor)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        digests = b"".join(threads.map(read, share.large[0]))
    coming.wait()
    return [digest_one(small) + digests]


def _tell(mail: Mail, rank: int, word: int) -> None:
    mail.post(torch.tensor([word], dtype=torch.uint8), rank)


def _hear(mail: Mail, rank: int) -> int:
    word = torch.zeros(1, dtype=torch.uint8)
    mail.receive(word, rank)
    return int(word)


def _digest_as_they_come(part: list[torch.Tensor], messages: list[Expected]) -> bytes:
    """The digest of each tensor is taken while the next ones are still on their way."""
    digests = bytearray()
    for tensor, message in zip(part, messages, strict=True):
        message.wait()
        digests += digest_one(tensor)
    return bytes(digests)


def _matches(mail: Mail, donor: int, digests: bytes) -> bool:
    if not digests:
        return True
    expected = torch.empty(len(digests), dtype=torch.uint8)
    mail.receive(expected, donor)
    return digests == bytes(expected.numpy())


# -- bytes -------------------------------------------------------------------------------------------------------------


def _share(tensors: dict[str, torch.Tensor], donors: int) -> _Share:
    """Large tensors go, in order, to the donor with the least to send so far. Equal on both sides."""
    small = [path for path, tensor in tensors.items() if _size(tensor) < SMALL]
    large: list[list[str]] = [[] for _ in range(donors)]
    load = [0] * donors
    for path, tensor in tensors.items():
        if _size(tensor) >= SMALL:
            place = load.index(min(load))
            large[place].append(path)
            load[place] += _size(tensor)
    return _Share(small, large)


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().reshape(-1).view(torch.uint8)


def _pack(tensors: list[torch.Tensor]) -> torch.Tensor:
    parts = [_as_bytes(tensor.contiguous()) for tensor in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)


def _unpack(packed: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    place = 0
    for tensor in tensors:
        part = packed[place : place + _size(tensor)]
        tensor.copy_(part.clone().view(tensor.dtype).reshape(tensor.shape))
        place += _size(tensor)
