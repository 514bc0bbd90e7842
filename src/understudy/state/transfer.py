"""Moves state from live twins into a joiner's own storage, over the regrouped default group.

The first donor sends a table of contents and all small tensors in one buffer; large tensors are spread over all donors
and go straight from storage to storage. Every donor sends the digests of what it sent, and the receiver checks them.
A new fault breaks the connections, so that a blocked transfer raises at once; a receiver's state is torn until it ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch
import torch.distributed as dist

from understudy.errors import TransferError
from understudy.state.digests import digest_one
from understudy.state.manifest import Inventory, Protected

SMALL = 64 * 1024


class _Line(msgspec.Struct, frozen=True, array_like=True):
    path: str
    dtype: str
    shape: tuple[int, ...]


class _Contents(msgspec.Struct, frozen=True):
    lines: list[_Line]
    plain: bytes


@dataclass(frozen=True, slots=True)
class _Share:
    """Which tensors travel how: `small` all from the first donor, `large` per donor."""

    small: list[str]
    large: list[list[str]]


class Outgoing:
    """What a donor will send. Taking digests is the slow part; a donor can do it while it waits for its receiver."""

    def __init__(self, protected: Protected) -> None:
        self.inventory = protected.inventory()
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
    tensors = outgoing.inventory.tensors
    share = _share(tensors, donor_count)
    works: list[dist.Work | None] = []
    digests = bytearray()
    if donor_place == 0:
        _send_contents(outgoing.inventory, receiver)
        small = _pack([tensors[path] for path in share.small])
        works.append(dist.isend(small, receiver) if small.numel() else None)
        digests += digest_one(small)
    mine = share.large[donor_place]
    works += [dist.isend(_as_bytes(tensors[path].contiguous()), receiver) for path in mine]
    for path in mine:
        digests += outgoing.digest(path)
    for work in works:
        _wait(work)
    if digests:
        dist.send(torch.frombuffer(digests, dtype=torch.uint8), receiver)


def receive_state(protected: Protected, donors: Sequence[int]) -> int:
    """Receiver's side: everything lands in the protected objects. Returns the number of bytes that came."""
    contents = _receive_contents(donors[0])
    own = protected.inventory().tensors
    tensors = {line.path: _landing_place(line, own.get(line.path)) for line in contents.lines}
    share = _share(tensors, len(donors))
    small = torch.empty(sum(_size(tensors[path]) for path in share.small), dtype=torch.uint8)
    landing = [[tensors[path] for path in part] for part in share.large]
    landing[0].insert(0, small)
    coming = [
        [dist.irecv(_as_bytes(tensor), donor) if tensor.numel() else None for tensor in part]
        for donor, part in zip(donors, landing, strict=True)
    ]
    arrived = [_digest_as_they_come(part, works) for part, works in zip(landing, coming, strict=True)]
    damaged = [str(donor) for donor, digests in zip(donors, arrived, strict=True) if not _matches(donor, digests)]
    if damaged:
        raise TransferError(f"state from rank {', '.join(damaged)} does not match its digest")
    _unpack(small, [tensors[path] for path in share.small])
    _write_back(own, tensors)
    protected.install(Inventory(tensors, contents.plain))
    return sum(_size(tensor) for tensor in tensors.values())


# -- contents ----------------------------------------------------------------------------------------------------------


def _send_contents(inventory: Inventory, receiver: int) -> None:
    lines = [
        _Line(path, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for path, tensor in inventory.tensors.items()
    ]
    encoded = bytearray(msgspec.msgpack.encode(_Contents(lines, inventory.plain)))
    dist.send(torch.tensor([len(encoded)]), receiver)
    dist.send(torch.frombuffer(encoded, dtype=torch.uint8), receiver)


def _receive_contents(donor: int) -> _Contents:
    length = torch.zeros(1, dtype=torch.int64)
    dist.recv(length, donor)
    encoded = torch.empty(int(length), dtype=torch.uint8)
    dist.recv(encoded, donor)
    return msgspec.msgpack.decode(bytes(encoded.numpy()), type=_Contents)


def _landing_place(line: _Line, present: torch.Tensor | None) -> torch.Tensor:
    """The receiver's own storage where it fits, else new memory."""
    dtype = getattr(torch, line.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise TransferError(f"{line.path} has the unknown type {line.dtype}")
    if present is not None and present.dtype == dtype and tuple(present.shape) == line.shape:
        if present.is_contiguous() and present.device.type == "cpu":
            return present
    elif line.path.startswith("parameters/"):
        shape = "absent" if present is None else f"{present.dtype} {tuple(present.shape)}"
        raise TransferError(f"{line.path} is {shape} here but {dtype} {line.shape} at the donor")
    return torch.empty(line.shape, dtype=dtype)


def _write_back(own: dict[str, torch.Tensor], received: dict[str, torch.Tensor]) -> None:
    """Copy what could not land in its own storage (another device or layout)."""
    for path, tensor in received.items():
        present = own.get(path)
        if present is not None and present.shape == tensor.shape and present.data_ptr() != tensor.data_ptr():
            present.copy_(tensor)
            received[path] = present


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
