"""Which device each process of a host has, where the host has told how many of them its processes see.

There are two kinds of spares. A *spare device* is one that no rank has: its spare keeps it, whatever rank it gets, and
so it also survives the loss of a device. A *shadow* is an idle process on the device of a rank: it is of use when a
process is lost and a device is free again. Spare devices are given first, then shadows are spread evenly.

A device that was lost is given to no process any more. Where a host has told nothing, all of this is nothing.
Knows numbers of devices; what a device is, and how a process comes to see its own, is known elsewhere.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from understudy.foundation.ids import HostId, MemberId, Rank
from understudy.protocol.hosts import Host
from understudy.protocol.reasons import Code, Reason, because
from understudy.protocol.roster import Member, Roster


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Of one host. `ranks`: devices that processes with a rank have. `spares`: the device of each process without."""

    well: Sequence[int]
    ranks: Collection[int]
    spares: Sequence[int] = ()

    @property
    def free_of_ranks(self) -> list[int]:
        return [device for device in self.well if device not in self.ranks]


def device_for_spare(use: DeviceUse) -> int | None:
    """A device that no process has; or, as a shadow, the one with the fewest spares. None: none is well."""
    spare_devices = [device for device in use.free_of_ranks if device not in use.spares]
    if spare_devices:
        return spare_devices[0]
    return min(use.well, key=lambda device: (use.spares.count(device), device), default=None)


def device_for_rank(use: DeviceUse, wanted: Sequence[int | None]) -> int | None:
    """The first of `wanted` that is well and that no other rank has; otherwise any such device; otherwise None."""
    free = use.free_of_ranks
    return next((device for device in wanted if device in free), free[0] if free else None)


def use_of(host: Host, roster: Roster, without: Collection[MemberId] = ()) -> DeviceUse:
    """`without`: as if these processes were not there."""
    ranks, spares = set[int](), list[int]()
    for id_, device in roster.devices.get(host.id, {}).items():
        if id_ in without:
            continue
        if roster.members[id_].rank is None:
            spares.append(device)
        else:
            ranks.add(device)
    return DeviceUse(host.well_devices, ranks, spares)


def give_to_spare(member: Member, host: Host, roster: Roster) -> None:
    if host.devices:
        roster.take_device(member, device_for_spare(use_of(host, roster, (member.id,))))


def give_to_rank(
    member: Member, host: Host | None, roster: Roster, former: tuple[HostId, int] | None, holder: MemberId | None = None
) -> None:
    """The process has a rank now, and a place. It keeps its own device, if no other rank has that; a shadow takes the
    one that its rank had there (`former`). `holder`: hands the rank over, so that its device will be free."""
    if host is None or not host.devices:
        return
    there = former[1] if former is not None and former[0] == host.id else None
    without = (member.id,) if holder is None else (member.id, holder)
    wanted = (roster.device_of(member), there, member.slot)
    roster.take_device(member, device_for_rank(use_of(host, roster, without), wanted))


def why_none_is_free(host: Host) -> Reason:
    return because(Code.NO_DEVICE, host=host.id, lost=tuple(str(device) for device in sorted(host.lost_devices)))


def note_where(member: Member, roster: Roster, last: dict[Rank, tuple[HostId, int]]) -> Reason | None:
    """`last`: on which device each rank has computed last. Its process computes from now on; on which other one, if it
    is another one."""
    assert member.rank is not None
    former, device = last.pop(member.rank, None), roster.device_of(member)
    if device is None:
        return None
    last[member.rank] = (member.host, device)
    if former is None or former == (member.host, device):
        return None
    return because(
        Code.OTHER_DEVICE, rank=member.rank, device=device, host=member.host, former=former[1], home=former[0]
    )


def why_this_one(member: Member, host: Host, roster: Roster) -> Reason | None:
    """Of a spare, for the ledger."""
    device = roster.device_of(member)
    if device is None:
        return None
    if device in use_of(host, roster, (member.id,)).ranks:
        return because(Code.SHADOW, member=member.id, device=device, host=host.id)
    return because(Code.SPARE_DEVICE, member=member.id, device=device, host=host.id)
