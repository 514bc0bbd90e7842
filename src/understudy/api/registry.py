"""Which rank or host the labels of an alert mean. Pure: a roster and a table go in, a target or a reason comes out.

Monitors name things in their own words: a node, an instance with a port, a pod, a device by its UUID or its place on
the bus. What is not known is never guessed. One label that names something else than this job is enough: a monitor of
many jobs may speak of another one's rank 3. Labels that contradict each other name nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from understudy.foundation.ids import HostId, MemberId, Rank
from understudy.protocol.roster import Roster

_HOST_LABELS = ("host", "node", "Hostname", "hostname", "kubernetes_node", "instance")
_POD_LABELS = ("pod", "exported_pod", "pod_name")
_UUID_LABELS = ("UUID", "uuid", "gpu_uuid")
_BUS_LABELS = ("pci_bus_id",)
_SLOT_LABELS = ("gpu", "local_rank")
_LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """`slot`: its place on its host, which is the local rank of the process that uses it."""

    slot: int
    uuid: str = ""
    pci_bus_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEntry:
    """What a host, or the operator for it, says of itself."""

    name: HostId
    aliases: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class RankTarget:
    """A rank and whoever holds it now. `since`: when that member got it, by the machine's clock."""

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


@dataclass(slots=True)
class Registry:
    """`table`: by host. Hosts of the job that are not in it are known by their own names only."""

    table: Mapping[HostId, HostEntry] = field(default_factory=dict)

    def target(self, labels: Mapping[str, str], roster: Roster, hosts: Sequence[HostId]) -> Target:
        """What these labels mean in this job now. Every label that we know must agree with the others."""
        try:
            return self._target(labels, roster, hosts)
        except _Contradiction as contradiction:
            return Nothing(str(contradiction))

    def _target(self, labels: Mapping[str, str], roster: Roster, hosts: Sequence[HostId]) -> Target:
        named: list[tuple[str, HostId]] = []
        unknown: list[str] = []
        for label in (*_HOST_LABELS, *_POD_LABELS):
            if labels.get(label):
                host = self._host(label, labels[label], hosts)
                if host is None:
                    unknown.append(shown(label, labels[label]))
                else:
                    named.append((label, host))
        device = self._device_by_uuid(labels, unknown)
        if device is not None:
            named.append((device[0], device[1]))
        host = _the_only_one(named)
        slot = device[2] if device is not None else self._slot_on(host, labels, unknown)
        if unknown:
            return Nothing(f"labels that name nothing in this job: {', '.join(unknown)}")
        if labels.get("rank"):
            return _rank_of(labels["rank"], host, slot, roster)
        if host is None:
            return Nothing("no label names a rank or a host")
        if slot is not None:
            return _in_slot(host, slot, roster)
        return HostTarget(host, tuple(_targets_on(host, roster)))

    def _host(self, label: str, value: str, hosts: Sequence[HostId]) -> HostId | None:
        names = {value, value.rpartition(":")[0]} - {""} if label == "instance" else {value}
        for host in hosts:
            entry = self.table.get(host)
            if label in _POD_LABELS:
                if entry is not None and value in entry.pods:
                    return host
            elif host in names or (entry is not None and names & set(entry.aliases)):
                return host
        return None

    def _device_by_uuid(self, labels: Mapping[str, str], unknown: list[str]) -> tuple[str, HostId, int] | None:
        for label in _UUID_LABELS:
            uuid = labels.get(label)
            if not uuid:
                continue
            for entry in self.table.values():
                for device in entry.devices:
                    if device.uuid == uuid:
                        return label, entry.name, device.slot
            unknown.append(shown(label, uuid))
        return None

    def _slot_on(self, host: HostId | None, labels: Mapping[str, str], unknown: list[str]) -> int | None:
        """A place on the bus and an index mean something on their own host only."""
        entry = None if host is None else self.table.get(host)
        for label in _BUS_LABELS:
            bus = labels.get(label)
            if bus:
                for device in () if entry is None else entry.devices:
                    if device.pci_bus_id and device.pci_bus_id.lower() == bus.lower():
                        return device.slot
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


def _the_only_one(named: Sequence[tuple[str, HostId]]) -> HostId | None:
    if len({host for _, host in named}) > 1:
        said = ", ".join(f"{label} means {host}" for label, host in named)
        raise _Contradiction(f"the labels contradict each other: {said}")
    return named[0][1] if named else None


def _rank_of(text: str, host: HostId | None, slot: int | None, roster: Roster) -> Target:
    if not is_number(text) or Rank(int(text)) not in roster.holders:
        return Nothing(f"nobody holds {shown('rank', text)}")
    target = _holder(Rank(int(text)), roster)
    if host is not None and target.host != host:
        return Nothing(f"the labels contradict each other: rank {target.rank} is on {target.host}, not on {host}")
    if slot is not None and host is not None and roster.holder(target.rank).slot != slot:
        return Nothing(f"the labels contradict each other: rank {target.rank} does not use device {slot} of {host}")
    return target


def _in_slot(host: HostId, slot: int, roster: Roster) -> Target:
    for target in _targets_on(host, roster):
        if roster.holder(target.rank).slot == slot:
            return target
    return Nothing(f"no rank uses device {slot} of {host}")


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
    clean = "".join(letter if letter.isprintable() else "?" for letter in value[:_LONGEST_SHOWN])
    return f"{label}={clean}" + ("..." if len(value) > _LONGEST_SHOWN else "")
