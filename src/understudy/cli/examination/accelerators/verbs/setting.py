"""Where a process of a rank is, and on which device."""

from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

from understudy.cli.examination.accelerators import brought
from understudy.cli.examination.accelerators.verbs.held import Held
from understudy.foundation import settings
from understudy.plugins import registry
from understudy.plugins.kinds import COMMUNICATOR, DEVICE

_FLAG = "--device"


def look_around(held: Held, device: str, family: str, emulated: bool) -> dict[str, Any]:
    """Nothing is taken: is there such a device, how many, and what is against protecting a job on it here?"""
    _choose(held, device, family, emulated)
    assert held.device is not None and held.family is not None
    environment = settings.of_the_engine()
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None,  # type: ignore[no-untyped-call]
        "present": held.device.present(),
        "count": torch.accelerator.device_count(),
        "objections": [
            objection for seam in (held.device, held.family) if (objection := seam.objection(environment)) is not None
        ],
        "variables": dict(held.family.variables),
    }


def host_store(held: Held) -> dict[str, Any]:
    held.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=10))
    return {"port": held.store.port}


def take(held: Held, device: str, family: str, emulated: bool, place: int) -> dict[str, Any]:
    """`place`: of the device among those of this host."""
    torch.set_num_threads(1)
    _choose(held, device, family, emulated)
    assert held.device is not None and held.family is not None
    held.where = held.device.take(place)
    settings.set_for_the_engine(held.family.variables)
    return {"where": str(held.where)}


def _choose(held: Held, device: str, family: str, emulated: bool) -> None:
    if emulated:
        brought.emulate(device)
    held.device = registry.named(DEVICE, device, _FLAG)
    held.family = registry.named(COMMUNICATOR, family, _FLAG)
