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
import torch.distributed as dist

from understudy.errors import TransferError
from understudy.state.contents import Contents, landing_place, receive_contents, send_contents, write_back
from understudy.state.digests import digest_one
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


def send_state(outgoing: Outgoing, receiver: int, donor_place: int, donor_count: int) -> None:
    """Donor's side. `donor_place` is this rank's place in the list of donors."""
    first = donor_place == 0
    if first:
        send_contents(outgoing.inventory, outgoing.landmark, receiver)
    if _hear(receiver) == _READ:
        if not first:
            return
        _send_tensors(outgoing, receiver, _share(outgoing.inventory.tensors, 1), place=0, large_too=False)
        if _hear(receiver) != _DONE:  # until then our memory must stay as it is
            raise TransferError(f"what rank {receiver} read from this rank's memory does not match its digest")
        return
    _send_tensors(outgoing, receiver, _share(outgoing.inventory.tensors, donor_count), donor_place, large_too=True)


def _send_tensors(outgoing: Outgoing, receiver: int, share: _Share, place: int, large_too: bool) -> None:
    """The small ones in one piece from the first donor, this donor's large ones, and the digests of all of them."""
    tensors = outgoing.inventory.tensors
    works: list[dist.Work | None] = []
    digests = bytearray()
    if place == 0:
        small = _pack([tensors[path] for path in share.small])
        works.append(dist.isend(small, receiver) if small.numel() else None)
        digests += digest_one(small)
    if large_too:
        works += [dist.isend(_as_bytes(tensors[path].contiguous()), receiver) for path in share.large[place]]
    for path in share.large[place]:
        digests += outgoing.digest(path)
    for work in works:
        _wait(work)
    if digests:
        dist.send(torch.frombuffer(digests, dtype=torch.uint8), receiver)


def receive_state(
    protected: Protected, donors: Sequence[int], before_first_byte: Callable[[], None], read_memory: bool = True
) -> int:
    """Receiver's side: everything lands in the protected objects. Returns the number of bytes that came."""
    contents = receive_contents(donors[0])
    own = protected.inventory().tensors
    tensors = {line.path: landing_place(line, own.get(line.path)) for line in contents.lines}
    reader = contents.reader() if read_memory else None
    for donor in donors:
        _tell(donor, _SEND if reader is None else _READ)
    if reader is not None:
        donors = donors[:1]
    share = _share(tensors, len(donors))
    small = torch.empty(sum(_size(tensors[path]) for path in share.small), dtype=torch.uint8)
    before_first_byte()
    if reader is None:
        arrived = _receive_tensors(donors, tensors, share, small)
    else:
        arrived = _read_tensors(donors[0], reader, contents, tensors, share, small)
    damaged = [str(donor) for donor, digests in zip(donors, arrived, strict=True) if not _matches(donor, digests)]
    if reader is not None:
        _tell(donors[0], _DAMAGED if damaged else _DONE)
    if damaged:
        raise TransferError(f"state from rank {', '.join(damaged)} does not match its digest")
    _unpack(small, [tensors[path] for path in share.small])
    write_back(own, tensors)
    protected.install(Inventory(tensors, contents.plain))
    return sum(_size(tensor) for tensor in tensors.values())


def _receive_tensors(
    donors: Sequence[int], tensors: dict[str, torch.Tensor], share: _Share, small: torch.Tensor
) -> list[bytes]:
    """Over the process group, from all donors at once. Returns the digests of what each one sent."""
    landing = [[tensors[path] for path in part] for part in share.large]
    landing[0].insert(0, small)
    coming = [
        [dist.irecv(_as_bytes(tensor), donor) if tensor.numel() else None for tensor in part]
        for donor, part in zip(donors, landing, strict=True)
    ]
    return [_digest_as_they_come(part, works) for part, works in zip(landing, coming, strict=True)]


def _read_tensors(
    donor: int, reader: Reader, contents: Contents, tensors: dict[str, torch.Tensor], share: _Share, small: torch.Tensor
) -> list[bytes]:
    """Out of the donor's memory, on all cores: the others wait for us. Returns the digests."""
    addresses = {line.path: line.address for line in contents.lines}

    def read(path: str) -> bytes:
        reader.read(addresses[path], tensors[path])
        return digest_one(tensors[path])

    coming = dist.irecv(small, donor) if small.numel() else None
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        digests = b"".join(threads.map(read, share.large[0]))
    _wait(coming)
    return [digest_one(small) + digests]


def _tell(rank: int, word: int) -> None:
    dist.send(torch.tensor([word], dtype=torch.uint8), rank)


def _hear(rank: int) -> int:
    word = torch.zeros(1, dtype=torch.uint8)
    dist.recv(word, rank)
    return int(word)


def _digest_as_they_come(part: list[torch.Tensor], works: list[dist.Work | None]) -> bytes:
    """The digest of each tensor is taken while the next ones are still on their way."""
    digests = bytearray()
    for tensor, work in zip(part, works, strict=True):
        _wait(work)
        digests += digest_one(tensor)
    return bytes(digests)


def _matches(donor: int, digests: bytes) -> bool:
    if not digests:
        return True
    expected = torch.empty(len(digests), dtype=torch.uint8)
    dist.recv(expected, donor)
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


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()
