"""The manifest that comes before a transfer: what a donor holds, and where the receiver puts it."""

import os
from collections.abc import Mapping

import msgspec
import torch

from understudy.errors import TransferError, UnfitError
from understudy.state.digests import digest_text
from understudy.state.protected_state import PARAMETERS, Inventory
from understudy.state.transfer.vm_read import Landmark, MemoryReader, host_identity


class TensorEntry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor. `unit`: what it belongs to (see `Protected.units`), 0 if it is no part of a parameter's state.
    `address`: where it is in the donor's memory, 0 if it cannot be read there."""

    path: str
    unit: int
    dtype: str
    shape: tuple[int, ...]
    address: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`host`, `pid`, `landmark`: how to find the donor's memory, and how to know that it is the right one."""

    lines: list[TensorEntry]
    plain: bytes
    plain_digest: str
    host: str
    pid: int
    landmark: bytes
    landmark_address: int

    def check(self, donor: int) -> None:
        if digest_text(self.plain) != self.plain_digest:
            raise TransferError(f"what rank {donor} holds besides tensors does not match its digest")

    def reader(self, host: str) -> MemoryReader | None:
        """A way into the donor's memory, if this host and this system have one."""
        if not self.host or self.host != host_identity(host):
            return None
        reader = MemoryReader(self.pid)
        return reader if reader.works(self.landmark_address, self.landmark) else None


def _address(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 1  # nothing will be read
    return tensor.data_ptr() if tensor.device.type == "cpu" and tensor.is_contiguous() else 0


def manifest_of(inventory: Inventory, units: Mapping[str, int], landmark: Landmark, host: str) -> Manifest:
    lines = [
        TensorEntry(
            path, units.get(path, 0), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), _address(tensor)
        )
        for path, tensor in inventory.tensors.items()
    ]
    readable = all(entry.address for entry in lines)
    return Manifest(
        lines=lines,
        plain=inventory.plain,
        plain_digest=digest_text(inventory.plain),
        host=host_identity(host) if readable else "",
        pid=os.getpid(),
        landmark=landmark.content,
        landmark_address=landmark.address,
    )


def landing_place(entry: TensorEntry, present: torch.Tensor | None) -> torch.Tensor:
    """The receiver's own storage where it fits, else new memory."""
    dtype = getattr(torch, entry.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise TransferError(f"{entry.path} has the unknown type {entry.dtype}")
    if present is not None and present.dtype == dtype and tuple(present.shape) == entry.shape:
        if present.is_contiguous() and present.device.type == "cpu":
            return present
    elif entry.path.startswith(f"{PARAMETERS}/"):
        shape = "absent" if present is None else f"{present.dtype} {tuple(present.shape)}"
        raise UnfitError(
            f"{entry.path} is {shape} here but {dtype} {entry.shape} at a rank that has trained. Let the script build "
            "the same model whenever it starts"
        )
    return torch.empty(entry.shape, dtype=dtype)


def write_back(own: dict[str, torch.Tensor], received: dict[str, torch.Tensor]) -> None:
    """Copy what could not land in its own storage (another device or layout)."""
    for path, tensor in received.items():
        present = own.get(path)
        if present is not None and present.shape == tensor.shape and present.data_ptr() != tensor.data_ptr():
            present.copy_(tensor)
            received[path] = present
