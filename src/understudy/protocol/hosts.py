"""The hosts of a job: which are there, which were silent for too long, and which are under suspicion.

A host is a failure domain. A silent host is evidence; that it is lost is decided when its patience is over. A host that
was lost, or on which spares do not come up, is under suspicion for a while: no rank goes there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from understudy.foundation.ids import HostId
from understudy.protocol.succession import FORGOTTEN, MOMENT

THIS_HOST = HostId("this host")
"""The only one, where there is no cluster."""


@dataclass(slots=True)
class Host:
    """`ranks`: how many it holds when a world is founded; 0 for a host that offers only spares. `spares`: processes to
    keep ready there. `places`: how many ranks it can hold at most: what it offered, whatever spares an operator asks
    for later. `place`: its place among the others (torchrun's node rank). `store`: where its c10d store listens; empty
    where workers know it anyway."""

    id: HostId
    ranks: int
    spares: int
    place: int
    places: int
    store: str = ""
    present: bool = True
    silent_since: float | None = field(default=None, metadata=FORGOTTEN)
    patience: float = field(default=0.0, metadata=FORGOTTEN)
    suspect_until: float = field(default=0.0, metadata=MOMENT)
    failures_in_a_row: int = 0  # spares that died there before they were warm
    draining: bool = False  # on request: nothing is put there any more
    left: bool = field(default=False, metadata=FORGOTTEN)  # its agent has said that it ends
    spoke_at: float = field(default=float("-inf"), metadata=FORGOTTEN)  # its agent, whatever it said
    devices: int = 0  # that its processes see, by number; 0: none, or it has not told
    lost_devices: set[int] = field(default_factory=set)  # no process is put there
    device_faults: dict[int, int] = field(default_factory=dict)  # losses that said nothing about the device

    @property
    def well_devices(self) -> list[int]:
        return [device for device in range(self.devices) if device not in self.lost_devices]

    def deadline(self) -> float | None:
        return None if self.silent_since is None else self.silent_since + self.patience


@dataclass(slots=True)
class Hosts:
    """By identity. Looking for one is linear in their number; that happens only when a rank is given away."""

    by_id: dict[HostId, Host] = field(default_factory=dict)
    silent: dict[HostId, None] = field(default_factory=dict, metadata=FORGOTTEN)
    offer_spares: bool = False  # any of them ever did
    founding_hosts: int = 0  # present ones that hold ranks from the beginning
    founding_ranks: int = 0  # that they hold together; counted, because thousands of hosts come one by one
    with_devices: bool = False  # any of them ever was

    def join(
        self, id_: HostId, ranks: int, spares: int, place: int | None = None, store: str = "", devices: int = 0
    ) -> Host:
        """A host that comes back keeps what is held against it. `devices`: fewer than ranks are none, for then ranks
        share them as their script wants it."""
        known = self.by_id.get(id_)
        if place is None:
            place = len(self.by_id) if known is None else known.place
        host = Host(id_, ranks, spares, place, ranks + spares, store, devices=devices if devices >= ranks else 0)
        self._count(known, -1)
        self._count(host, 1)
        if known is not None:
            host.suspect_until, host.failures_in_a_row = known.suspect_until, known.failures_in_a_row
            host.lost_devices, host.device_faults = known.lost_devices, known.device_faults
        self.by_id[id_] = host
        self.offer_spares |= spares > 0
        self.with_devices |= host.devices > 0
        self.silent.pop(id_, None)
        return host

    def fall_silent(self, host: Host, at: float, patience: float) -> None:
        if host.present and host.silent_since is None:
            host.silent_since, host.patience = at, patience
            self.silent[host.id] = None

    @property
    def most_are_silent(self) -> bool:
        return 2 * len(self.silent) > sum(host.present for host in self.by_id.values())

    def be_patient(self, patience: float) -> None:
        """With all that are silent now."""
        for id_ in self.silent:
            self.by_id[id_].patience = max(self.by_id[id_].patience, patience)

    def speak(self, host: Host) -> None:
        host.silent_since, host.left = None, False
        self.silent.pop(host.id, None)

    def _count(self, host: Host | None, sign: int) -> None:
        if host is not None and host.present and host.ranks:
            self.founding_hosts += sign
            self.founding_ranks += sign * host.ranks

    def lose(self, host: Host, suspect_until: float) -> None:
        self._count(host, -1)
        host.present, host.silent_since = False, None
        host.suspect_until = max(host.suspect_until, suspect_until)
        self.silent.pop(host.id, None)

    def overdue(self, at: float, longest: float) -> list[Host]:
        """Lost: their patience is over, and another host has spoken since they fell silent, so that it is not this
        coordinator that is cut off. After `longest` seconds they are lost in any case."""
        return [host for id_ in self.silent if self._is_lost(host := self.by_id[id_], at, longest)]

    def _is_lost(self, host: Host, at: float, longest: float) -> bool:
        deadline, since = host.deadline(), host.silent_since
        if deadline is None or since is None or at < deadline:
            return False
        return at >= since + max(longest, host.patience) or self._any_host_spoke_after(since)

    def _any_host_spoke_after(self, since: float) -> bool:
        return any(host.spoke_at > since for host in self._present() if host.id not in self.silent)

    def next_deadline(self, at: float, longest: float) -> float | None:
        """When a host may be lost next, if no host speaks before."""
        silent = (self.by_id[id_] for id_ in self.silent)
        deadlines = [
            deadline if at < deadline or self._any_host_spoke_after(host.silent_since) else host.silent_since + longest
            for host in silent
            if host.silent_since is not None and (deadline := host.deadline()) is not None
        ]
        return min(deadlines, default=None)

    def witnesses(self, most: int = 3) -> list[HostId]:
        """A few hosts that could say that this coordinator is heard."""
        speaking = (host.id for host in self._present() if host.id not in self.silent)
        return [id_ for id_, _ in zip(speaking, range(most), strict=False)]

    def readmit(self, host: Host) -> None:
        """Nothing is held against it any more. If it is silent right now, that is still waited for."""
        host.draining, host.suspect_until, host.failures_in_a_row = False, 0.0, 0
        host.lost_devices, host.device_faults = set(), {}

    def usable(self, id_: HostId, at: float) -> bool:
        """May a rank go there? A host that is silent right now may be on its way out."""
        host = self.by_id.get(id_)
        if host is None or not host.present or host.draining:
            return False
        return host.silent_since is None and at >= host.suspect_until

    def founders(self) -> list[Host]:
        """Those that hold ranks from the beginning, in their order."""
        return sorted((host for host in self._present() if host.ranks), key=lambda host: (host.place, host.id))

    def _present(self) -> Iterator[Host]:
        return (host for host in self.by_id.values() if host.present)

    def present(self) -> list[Host]:
        return list(self._present())
