"""What the product does with memory of the host in the thread that trains: words, and what goes with a state.

On a GPU what it makes there is the host's because it asks for no device. Here device and host have one name, so its
functions are named, and what they do is left out of the queue. What they read of the device they must have waited for:
the race detector looks at them as at all others.

What they have the device do is named too, and goes into the queue, as on a GPU, from whichever thread it comes.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from understudy.groups.words import OwnWords
from understudy.state import word_sums
from understudy.state.transfer import device_path
from understudy.state.transfer.device_path import DevicePath
from understudy.training.recovery.state_transfer import StateTransfer
from understudy.training.recovery.tail import TailResults
from understudy_testkit.queued_device.patches import Patches

_OF_HOST: tuple[tuple[type, tuple[str, ...]], ...] = (
    (StateTransfer, ("get_ready", "hand_over", "run")),
    (TailResults, ("exchange",)),
    (OwnWords, ("barrier", "largest")),
)
_OF_DEVICE: tuple[tuple[type | ModuleType, tuple[str, ...]], ...] = (
    (word_sums, ("_sums",)),
    (DevicePath, ("new", "digests", "send", "_receive")),
)
_CHUNK = 16 * 1024  # bytes: states are small here, and more than one chunk shall be on its way
Used = Callable[[], Any]


def watch(patches: Patches, used: Used) -> None:
    """`used`: what is done inside goes to the device."""
    for owner, names in _OF_HOST:
        for name in names:
            patches.put(owner, name, _on_host)
    patches.put(device_path, "CHUNK", lambda _: _CHUNK)
    for place, names in _OF_DEVICE:
        for name in names:
            patches.put(place, name, functools.partial(_on_device, used))


def _on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return run


def _on_device(used: Used, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes(), used():
            return function(*args, **kwargs)

    return run
