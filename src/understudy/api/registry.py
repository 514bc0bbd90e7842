"""Which rank or host the labels of an alert mean. Pure: a roster and a table go in, a target or a reason comes out.

Monitors name things in their own words: a node, an instance with a port, a pod, a device by its UUID or its place on
the bus. What is not known is never guessed. One label that names something else than this job is enough: a monitor of
many jobs may speak of another one's rank 3. Labels that contradict each other name nothing.

Names are given by three: the job (what it calls its hosts), its operator (the rules file), and the hosts themselves. A
host that tells something wrong must not take an alert away from another one, so its word counts only where the other
two are silent; and what two hosts claim for themselves belongs to neither.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from understudy.foundation.ids import HostId, MemberId, Rank
from understudy.foundation.printable import printable
from understudy.protocol.roster import Roster
from understudy.wire.inventory import Device, HostInventory

_HOST_LABELS = ("host", "node", "Hostname", "hostname", "kubernetes_node", "instance")
_POD_LABELS = ("pod", "exported_pod", "pod_name")
_UUID_LABELS = ("UUID", "uuid", "gpu_uuid")
_BUS_LABELS = ("pci_bus_id",)
_SLOT_LABELS = ("gpu", "local_rank")
_LONGEST_SHOWN = 80
_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEntry:
    """What the operator says of a host. A field that is not empty replaces what the host tells."""

    name: HostId
    aliases: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class RankTarget:
    """A rank and the member that holds it now. `since`: when that member got it, by the machine's clock."""

    rank: Rank
    member: MemberId
    host: HostId
    since: float


@dataclass(frozen=True, slots=True)
class HostTarget:
    """A host with the ranks that it holds now."""

    host: HostId
    ranks: tuple[RankTarget, ...]


@dataclass(frozen=True, slots=True)
class Nothing:
    """The labels name nothing in this job."""

    why: str


Target = RankTarget | HostTarget | Nothing


class _Contradiction(Exception):
    pass


Told = Mapping[HostId, HostInventory]


@dataclass(slots=True)
class Registry:
    """`table`: of the operator, by host. `told`: what hosts say of themselves now; asked for with every alert, because
    hosts come, go and change."""

    table: Mapping[HostId, HostEntry] = field(default_factory=dict)
    told: Callable[[], Told] = dict

    def target(self, labels: Mapping[str, str], roster: Roster, hosts: Sequence[HostId]) -> Target:
        """What these labels mean in this job now. Every label that we know must agree with the others."""
        try:
            return self._target(labels, roster, hosts)
        except _Contradiction as contradiction:
            return Nothing(str(contradiction))

    def _target(self, labels: Mapping[str, str], roster: Roster, hosts: Sequence[HostId]) -> Target:
        told = self.told()
        named: list[tuple[str, HostId]] = []
        unknown: list[str] = []
        for label in (*_HOST_LABELS, *_POD_LABELS):
            if labels.get(label):
                host = self._host(label, labels[label], hosts, told)
                if host is None:
                    unknown.append(shown(label, labels[label]))
                else:
                    named.append((label, host))
        device = self._device_by_uuid(labels, unknown, told)
        if device is not None:
            named.append((device[0], device[1]))
        host = _the_only_one(named)
        slot = device[2] if device is not None else self._slot_on(host, labels, unknown, told)
        if unknown:
            return Nothing(f"labels that name nothing in this job: {', '.join(unknown)}")
        if labels.get("rank"):
            return _rank_of(labels["rank"], host, slot, roster)
        if host is None:
            return Nothing("no label names a rank or a host")
        if slot is not None:
            return _in_slot(host, slot, roster)
        return HostTarget(host, tuple(_targets_on(host, roster)))

    def _host(self, label: str, value: str, hosts: Sequence[HostId], told: Told) -> HostId | None:
        names, is_pod = _names_in(label, value), label in _POD_LABELS
        claimants = [host for host in hosts if self._is_given(host, names, is_pod)]
        if not claimants:
            claimants = [host for host in hosts if host in told and self._is_told(host, names, is_pod, told[host])]
        if len(claimants) > 1:
            raise _Contradiction(f"{shown(label, value)} is claimed by {_listed(claimants)}, so it names none of them")
        return claimants[0] if claimants else None

    def _is_given(self, host: HostId, names: Collection[str], is_pod: bool) -> bool:
        """By the job or by its operator."""
        entry = self.table.get(host)
        if is_pod:
            return entry is not None and any(pod in names for pod in entry.pods)
        return host in names or (entry is not None and any(alias in names for alias in entry.aliases))

    def _is_told(self, host: HostId, names: Collection[str], is_pod: bool, own: HostInventory) -> bool:
        """By the host, where the operator does not say it better."""
        entry = self.table.get(host)
        if is_pod:
            return own.pod in names and not (entry is not None and entry.pods)
        if entry is not None and entry.aliases:
            return False
        return own.host_name in names or any(address in names for address in own.addresses)

    def _device_by_uuid(
        self, labels: Mapping[str, str], unknown: list[str], told: Told
    ) -> tuple[str, HostId, int] | None:
        for label in _UUID_LABELS:
            uuid = labels.get(label)
            if not uuid:
                continue
            places = self._places_of(uuid, told)
            if len(places) > 1:
                claimed = _listed([f"device {slot} of {host}" for host, slot in sorted(places)])
                raise _Contradiction(f"{shown(label, uuid)} is claimed by {claimed}, so it names none of them")
            if places:
                host, slot = places.pop()
                return label, host, slot
            unknown.append(shown(label, uuid))
        return None

    def _places_of(self, uuid: str, told: Told) -> set[tuple[HostId, int]]:
        given = {
            (entry.name, device.slot)
            for entry in self.table.values()
            for device in entry.devices
            if device.uuid == uuid
        }
        return given or {
            (host, device.slot) for host in told for device in self._devices_of(host, told) if device.uuid == uuid
        }

    def _devices_of(self, host: HostId, told: Told) -> tuple[Device, ...]:
        entry = self.table.get(host)
        if entry is not None and entry.devices:
            return entry.devices
        return told[host].devices if host in told else ()

    def _slot_on(self, host: HostId | None, labels: Mapping[str, str], unknown: list[str], told: Told) -> int | None:
        """A place on the bus and an index mean something on their own host only."""
        for label in _BUS_LABELS:
            bus = labels.get(label)
            if bus:
                devices = () if host is None else self._devices_of(host, told)
                slots = {
                    device.slot for device in devices if device.pci_bus_id and _bus(device.pci_bus_id) == _bus(bus)
                }
                if len(slots) == 1:
                    return slots.pop()
                unknown.append(shown(label, bus))
                return None
        if any(labels.get(label) for label in _UUID_LABELS):
            return None  # an index beside a device that we do not know would be a guess
        for label in _SLOT_LABELS:
            index = labels.get(label, "")
            if index:
                if is_number(index):
                    return int(index)
                unknown.append(shown(label, index))
        return None


def _names_in(label: str, value: str) -> Collection[str]:
    """An instance may have a port, and then brackets around an address with colons."""
    if label != "instance":
        return (value,)
    without_port = value.rpartition(":")[0]
    return {value, without_port, without_port.strip("[]")} - {""}


def _bus(text: str) -> tuple[str, ...]:
    """The driver writes the domain with four digits, its exporter with eight, and people leave it out."""
    *domain, bus, device = ("", *text.lower().split(":"))
    return ":".join(domain).strip(":").lstrip("0"), bus, device


def _listed(claimants: Sequence[str]) -> str:
    more = len(claimants) - _MOST_SHOWN
    return ", ".join(claimants[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _the_only_one(named: Sequence[tuple[str, HostId]]) -> HostId | None:
    if len({host for _, host in named}) > 1:
        said = ", ".join(f"{label} means {host}" for label, host in named)
        raise _Contradiction(f"the labels contradict each other: {said}")
    return named[0][1] if named else None


def _rank_of(text: str, host: HostId | None, slot: int | None, roster: Roster) -> Target:
    if not is_number(text) or Rank(int(text)) not in roster.holders:
        return Nothing(f"no member holds {shown('rank', text)}")
    target = _holder(Rank(int(text)), roster)
    if host is not None and target.host != host:
        return Nothing(f"the labels contradict each other: rank {target.rank} is on {target.host}, not on {host}")
    if slot is not None and host is not None and _device_of(target.rank, roster) != slot:
        return Nothing(f"the labels contradict each other: rank {target.rank} does not use device {slot} of {host}")
    return target


def _in_slot(host: HostId, slot: int, roster: Roster) -> Target:
    for target in _targets_on(host, roster):
        if _device_of(target.rank, roster) == slot:
            return target
    return Nothing(f"no rank uses device {slot} of {host}")


def _device_of(rank: Rank, roster: Roster) -> int:
    """The one of its place, if nothing else was decided."""
    member = roster.holder(rank)
    device = roster.device_of(member)
    return member.slot if device is None else device


def _targets_on(host: HostId, roster: Roster) -> list[RankTarget]:
    return [
        _holder(member.rank, roster) for member in roster.seated() if member.host == host and member.rank is not None
    ]


def _holder(rank: Rank, roster: Roster) -> RankTarget:
    member = roster.holder(rank)
    return RankTarget(rank, member.id, member.host, member.assigned_at)


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def shown(label: str, value: str) -> str:
    """For a reason that people read: in one line, and not too long."""
    clean = printable(value[:_LONGEST_SHOWN])
    return f"{label}={clean}" + ("..." if len(value) > _LONGEST_SHOWN else "")
