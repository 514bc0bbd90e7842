"""What this version can protect, checked before anything is built on it: torch 2.15, on CPUs, with gloo or a family of
communicators that another package brings.

Groups are re-formed in place with functions of torch that are not public, and blocked collectives are freed by breaking
their connections. With another torch, or on an accelerator, that would fail at the first fault instead of now.
"""

import torch

from understudy.errors import UsageError
from understudy.groups.communicators import CommunicatorFamily
from understudy.plugins import registry
from understudy.plugins.kinds import COMMUNICATOR

_TORCH = (2, 15)
_USUAL = "gloo"


def check(backend: str | None) -> CommunicatorFamily:
    """What makes the backends of the process groups. UsageError when a fault could not be recovered here."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version != _TORCH:
        wanted = ".".join(map(str, _TORCH))
        raise UsageError(
            f"torch {torch.__version__} is installed, and this version of Understudy works with torch {wanted} only: "
            f"pip install 'torch=={wanted}.*'. Without protection the script runs under torchrun as it is"
        )
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is not None:
        raise UsageError(
            f"this process sees an accelerator ({accelerator.type}), and Understudy cannot protect training on one "
            "yet: nothing could be recovered. Run the script under torchrun instead, or hide the devices "
            "(CUDA_VISIBLE_DEVICES='') to train on the CPU"
        )
    family: CommunicatorFamily = registry.named(COMMUNICATOR, backend or _USUAL, f"join(backend={backend!r})")
    return family
