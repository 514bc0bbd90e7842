"""Which device a spare sees under which number. It is settled when the spare learns its rank, and not before.

A founding member sees its device under the number of its place from its birth on. A spare is born with a device, and
learns later which local rank it will be: then it sees the same devices in such an order that `cuda:LOCAL_RANK`, as
scripts write it, is its own, and `job.device` is that one too. The driver reads the order once. So a script that uses
a device above `join()` is refused in the spare, while nothing depends on it yet.
"""

from understudy.devices.contract import Device
from understudy.errors import UsageError
from understudy.foundation.settings import WorkerSettings, set_view
from understudy.protocol.commands import AssignRank


def require_open(kind: Device, settings: WorkerSettings) -> None:
    """In a spare that is about to wait."""
    if settings.devices and kind.touched():
        raise UsageError(
            "this spare has used a device before it knows its rank: the device that cuda:LOCAL_RANK names could be "
            "another rank's. Move what uses a device (more than counting them) below understudy.join()"
        )


def settle(kind: Device, settings: WorkerSettings, assignment: AssignRank) -> None:
    """From now on the number of its place is its own device."""
    if not settings.devices:
        return
    own, at = assignment.device, assignment.slot
    own = at if own is None else own
    if max(own, at) >= len(settings.devices):
        raise UsageError(
            f"local rank {at} cannot see device {own} of this host as its own: there are {len(settings.devices)} "
            "devices. Start as many ranks as there are devices, or fewer"
        )
    require_open(kind, settings)
    set_view(kind.view(settings.devices, own, at))
