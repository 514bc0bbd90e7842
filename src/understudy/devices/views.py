"""Which devices of its host a process sees, and under which numbers. Imports no engine: agents use it too.

Scripts write `cuda:LOCAL_RANK`. So a process whose device is not the one of its place sees the same devices in another
order, with its own where that number looks. The driver reads the order when a process uses a device for the first time,
and never again. Untested: there was no accelerator. Parts of devices (MIG) are not understood.
"""

from collections.abc import Mapping, Sequence

VARIABLE = "CUDA_VISIBLE_DEVICES"
"""Lists devices by number or UUID, separated by commas."""


def listed(environment: Mapping[str, str], count: int) -> tuple[str, ...]:
    """The devices that processes with this environment see, in their order. `count`: how many there are, if the
    environment does not say which."""
    value = environment.get(VARIABLE)
    if value is None or not value.strip():
        return tuple(str(number) for number in range(count))
    return tuple(part.strip() for part in value.split(","))


def hidden(environment: Mapping[str, str]) -> bool:
    """Is there to be none? So it is where a script trains on the CPU beside devices."""
    return environment.get(VARIABLE) == ""


def arranged(devices: Sequence[str], own: int, at: int) -> str:
    """All of them, with device number `own` at the place `at`. The two change places, and no other one does."""
    order = list(devices)
    order[own], order[at] = order[at], order[own]
    return ",".join(order)
