"""The environment of the processes that an agent starts: workers, the fork server, the store."""

from collections.abc import Mapping

from understudy.devices import importing, views
from understudy.foundation.settings import SECRETS, WorkerSettings
from understudy.protocol.commands import Seat

_OF_A_RANK = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")
"""The process that started us may have had a rank. It is not ours, and a spare has none."""


def base_environment(inherited: Mapping[str, str], world_size: int) -> dict[str, str]:
    """What is the same for all processes of a job. Secrets stay with the agent: a script, and whatever it loads, has no
    use for the token of the job or of its API."""
    environment = {name: value for name, value in inherited.items() if name not in (*_OF_A_RANK, *SECRETS)}
    if world_size > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def worker_environment(
    inherited: Mapping[str, str],
    settings: WorkerSettings,
    seat: Seat | None,
    world_size: int,
    view: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """What we inherited, torchrun's variables where the rank is known at the start, and our own.

    A script that never calls `understudy.join()` finds what it would find under torchrun. A spare has no rank yet; it
    gets these variables in `join()`, together with its rank.

    `view`: of devices.
    """
    environment = {**base_environment(inherited, world_size), **(view or {})}
    environment["TORCHELASTIC_RUN_ID"] = "understudy"  # torch and trainers ask whether it is there
    if seat is not None:
        address, _, port = seat.store_address.rpartition(":")  # empty: the store is this host's own
        environment |= {
            "RANK": str(seat.rank),
            "LOCAL_RANK": str(seat.local_rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(seat.local_world_size),
            "GROUP_RANK": str(seat.node_rank),
            "GROUP_WORLD_SIZE": str(seat.nodes),
            "ROLE_RANK": str(seat.rank),
            "ROLE_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": address or settings.store_host,
            "MASTER_PORT": port or str(settings.store_port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
    return environment | settings.to_environment()


def view_at_birth(devices: tuple[str, ...], seat: Seat | None, device: int | None) -> dict[str, str]:
    """Of the devices of this host, for a process that has number `device` (None: nothing was decided). A rank sees its
    own under the number of its place. A spare does not know that yet: until it does, it sees its own device first, and
    questions about devices are to leave them alone."""
    if device is None or device >= len(devices):
        return {}
    if seat is None:
        return {views.VARIABLE: views.arranged(devices, device, 0), **importing.VARIABLES}
    if device == seat.local_rank or seat.local_rank >= len(devices):
        return {}
    return {views.VARIABLE: views.arranged(devices, device, seat.local_rank)}
