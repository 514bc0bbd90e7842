"""The manifest that comes before a transfer: what a donor holds, and where the receiver puts it."""

import os
from collections.abc import Callable, Collection, Mapping

import msgspec
import torch

from understudy.devices.memory import in_host_memory, on_device, to_device
from understudy.errors import TransferError, UnfitError
from understudy.state.digests import digest_text
from understudy.state.protected_state import PARAMETERS, Inventory
from understudy.state.transfer.vm_read import Landmark, MemoryReader, host_identity


class TensorEntry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor. `unit`: what it belongs to (see `Protected.units`), 0 if it is no part of a parameter's state.
    `address`: where it is in the donor's memory, 0 if it cannot be read there. `on_device`: it is in the memory of the
    donor's device, and so it will be in the receiver's; a neighbouring version may not say so."""

    path: str
    unit: int
    dtype: str
    shape: tuple[int, ...]
    address: int
    on_device: bool = False


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`host`, `pid`, `landmark`: how to find the donor's memory, and how to know that it is the right one. `by_device`:
    the donor can send what is on its device from there (`device_path`)."""

    lines: list[TensorEntry]
    plain: bytes
    plain_digest: str
    host: str
    pid: int
    landmark: bytes
    landmark_address: int
    by_device: bool = False

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
    return tensor.data_ptr() if in_host_memory(tensor) and tensor.is_contiguous() else 0


def manifest_of(
    inventory: Inventory, units: Mapping[str, int], landmark: Landmark, host: str, by_device: bool = False
) -> Manifest:
    lines = [
        TensorEntry(
            path,
            units.get(path, 0),
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            _address(tensor),
            path in inventory.of_device,
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
        by_device=by_device,
    )


NewMemory = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


def landing_place(entry: TensorEntry, present: torch.Tensor | None, new: NewMemory | None = None) -> torch.Tensor:
    """The receiver's own storage where it fits, else new memory. `new`: on the device, if it comes from one to there;
    else it lands in host memory."""
    dtype = getattr(torch, entry.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise TransferError(f"{entry.path} has the unknown type {entry.dtype}")
    if present is not None and present.dtype == dtype and tuple(present.shape) == entry.shape:
        lands_there = in_host_memory(present) if new is None else on_device(present)
        if present.is_contiguous() and lands_there:
            return present
    elif entry.path.startswith(f"{PARAMETERS}/"):
        shape = "absent" if present is None else f"{present.dtype} {tuple(present.shape)}"
        raise UnfitError(
            f"{entry.path} is {shape} here but {dtype} {entry.shape} at a rank that has trained. Let the script build "
            "the same model whenever it starts"
        )
    return torch.empty(entry.shape, dtype=dtype) if new is None else new(entry.shape, dtype)


def write_back(
    own: dict[str, torch.Tensor], received: dict[str, torch.Tensor], of_device: Collection[str] = ()
) -> None:
    """Copy what could not land in its own storage (another device or layout). What is new here goes to the kind of
    memory in which the donor has it: `of_device` are paths of the device's."""
    for path, tensor in received.items():
        present = own.get(path)
        if present is None or present.shape != tensor.shape:
            if path in of_device:
                received[path] = to_device(tensor)
        elif present.data_ptr() != tensor.data_ptr():
            present.copy_(tensor)
            received[path] = present
