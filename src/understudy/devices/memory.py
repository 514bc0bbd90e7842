"""Where the bytes of tensors are, and how the host comes to them."""

import torch

from understudy.devices import in_use

_NO_BYTES = memoryview(b"")
_OF_NUMPY = frozenset((torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool))
"""What NumPy shows as bytes without a detour. Small states, of which there are many, consist of these."""


def is_host(device: torch.device) -> bool:
    """Is its memory that of the host?"""
    return device.type == "cpu"


def on_device(tensor: torch.Tensor) -> bool:
    """Is it in the memory of a device that runs behind this host? Asked of the device: what torch calls its memory does
    not always tell."""
    return any(device.holds(tensor) for device in in_use.devices())


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in the memory of that device, of what is not there yet."""
    for device in in_use.devices():
        return tensor if device.holds(tensor) else device.bring(tensor)
    return tensor


def in_host_memory(tensor: torch.Tensor) -> bool:
    """Can its bytes be read and written where they are?"""
    return tensor.is_cpu and not on_device(tensor)


def host_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a (local) tensor, as they are when everything that was queued so far has run. Not copied where the
    tensor is contiguous and in host memory; from any other device they come as a copy."""
    in_use.settle()
    if tensor.is_cpu and tensor.dtype in _OF_NUMPY and tensor.numel() and tensor.is_contiguous():
        return tensor.detach().numpy().data.cast("B")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data) if flat.numel() else _NO_BYTES
