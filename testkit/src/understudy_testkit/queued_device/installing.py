"""One call that puts the emulated device and its backend under a script."""

import atexit
from typing import Any

import torch.distributed as dist

from understudy_testkit.queued_device.backend import QueuedBackend
from understudy_testkit.queued_device.device import QueuedDevice
from understudy_testkit.queued_device.dispatch import QueueingMode
from understudy_testkit.queued_device.formation import NAME

BACKEND_TYPE = dist.ProcessGroup.BackendType.UCC  # torch has no UCC on PyPI; CUSTOM is what a sandbox has

_installed: QueuedDevice | None = None
_mode: QueueingMode | None = None


def install(contagion: bool = True, watchdog_every: float = 1.0) -> QueuedDevice:
    """Before torch.distributed is initialised, in the thread that trains: from now on its operations are queued, and
    `init_process_group("queued", enable_reconfigure=True)` makes groups as NCCL would. Further calls return the same
    device."""
    global _installed, _mode
    if _installed is None:
        _installed = QueuedDevice(contagion, watchdog_every)
        dist.Backend.register_backend(NAME, _make, extended_api=True, devices=["cpu"], _backend_type=BACKEND_TYPE)
        _installed.watch()
        atexit.register(_installed.stream.stop)
        _mode = QueueingMode(_installed.dispatcher)
        _mode.__enter__()  # type: ignore[no-untyped-call]
    return _installed


def is_installed() -> bool:
    return _installed is not None


def installed() -> QueuedDevice:
    if _installed is None:
        raise RuntimeError("the queued device is not installed")
    return _installed


def uninstall() -> None:
    """For tests, in the thread that has installed it, once what was queued is done."""
    global _installed, _mode
    if _installed is None or _mode is None:
        return
    _mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    _installed.unwatch()
    _installed.close()
    _installed = _mode = None


def _make(asked: Any, _options: object) -> QueuedBackend:
    return QueuedBackend(
        installed(), asked.store, asked.group_rank, asked.group_size, asked.timeout,
        asked.enable_reconfigure, list(asked.global_ranks_in_group),
    )  # fmt: skip
