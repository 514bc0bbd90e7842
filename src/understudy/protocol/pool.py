"""The spare pool: which spare takes a rank, when a new process is started and where, and when not, with the reason."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from understudy.foundation.ids import Generation, HostId, Rank
from understudy.protocol import devices
from understudy.protocol.commands import Command, DecisionKind, RecordDecision, Seat, StartMember
from understudy.protocol.hosts import Host, Hosts
from understudy.protocol.policy import Policy
from understudy.protocol.reasons import Code, Reason, because
from understudy.protocol.roster import Member, Roster
from understudy.protocol.succession import FORGOTTEN

_NO_HOST = because(Code.NO_HOST)
_NO_SPARES_OFFERED = because(Code.NO_SPARES_OFFERED)
_POOL_LOW = because(Code.POOL_LOW)


@dataclass(slots=True)
class PoolState:
    replacements: int = 0
    complained: bool = False
    refill_at: float | None = field(default=None, metadata=FORGOTTEN)


class SparePool:
    """Keeps spares ready on every host that wants some. Started processes are counted, so a crash loop ends by itself.

    A rank whose process died stays on its host if that has a spare; otherwise it goes to a host that offers only
    spares, or to any other. Nothing goes to a host that is silent, lost or under suspicion, and no host holds more
    ranks than it has places: spares beyond these, which an operator asked for, are for the ranks that are there."""

    def __init__(self, policy: Policy, roster: Roster, hosts: Hosts, state: PoolState) -> None:
        self.policy, self.roster, self.hosts, self.state = policy, roster, hosts, state

    def on_spare_lost(self, member: Member, was_warm: bool) -> None:
        host = self.hosts.by_id.get(member.host)
        if host is not None and not was_warm:
            host.failures_in_a_row += 1

    def on_spare_warm(self, member: Member) -> None:
        host = self.hosts.by_id.get(member.host)
        if host is not None:
            host.failures_in_a_row = 0

    # -- may a process be started? ------------------------------------------------------------------------------------

    def cannot_start(self, at: float, freed: Sequence[HostId] = ()) -> Reason | None:
        """Why no further process may be started anywhere. `freed`: hosts of processes that would be ended before."""
        if self.state.replacements >= self.policy.max_replacements:
            return because(Code.NO_REPLACEMENTS_LEFT, limit=self.policy.max_replacements)
        reasons = [self._cannot_seat_on(host, at, freed) for host in self.hosts.present()]
        if not reasons:
            return _NO_HOST
        return None if None in reasons else reasons[0]

    def _cannot_start_on(self, host: Host, at: float, freed: Sequence[HostId] = ()) -> Reason | None:
        if not self.hosts.offer_spares:
            return _NO_SPARES_OFFERED
        if host.failures_in_a_row >= self.policy.spare_failures_in_a_row:
            return because(Code.SPARES_DIE_EARLY, count=host.failures_in_a_row)
        if not self.hosts.usable(host.id, at):
            return because(Code.HOST_SUSPECT, host=host.id)
        if not self._room(host, freed):
            return because(Code.HOSTS_FULL, host=host.id)
        if host.devices and not host.well_devices:
            return devices.why_none_is_free(host)
        return None

    def _cannot_seat_on(self, host: Host, at: float, freed: Sequence[HostId] = ()) -> Reason | None:
        """Why no process may be started there for a rank."""
        if (no_way := self._cannot_start_on(host, at, freed)) is not None:
            return no_way
        if not self._slots_left(host, freed):
            return because(Code.PLACES_TAKEN, host=host.id)
        return None if self._places_left(host, freed) else devices.why_none_is_free(host)

    def _room(self, host: Host, freed: Sequence[HostId] = ()) -> int:
        """For how many more processes."""
        return max(0, host.ranks + host.spares - self.roster.count_on(host.id) + freed.count(host.id))

    def _places_left(self, host: Host, freed: Sequence[HostId] = ()) -> int:
        """For how many more ranks. Each needs a device of its own, where there are devices."""
        slots = self._slots_left(host, freed)
        if not host.devices:
            return slots
        return min(slots, len(devices.use_of(host, self.roster).free_of_ranks) + freed.count(host.id))

    def _slots_left(self, host: Host, freed: Sequence[HostId] = ()) -> int:
        return max(0, host.places - len(self.roster.slots.get(host.id, ())) + freed.count(host.id))

    def _room_for_ranks(self, host: Host, freed: Sequence[HostId] = ()) -> int:
        return min(self._room(host, freed), self._places_left(host, freed))

    def cannot_fill(self, vacancies: int, at: float, freed: Sequence[HostId] = ()) -> Reason | None:
        """Why so many vacant ranks cannot be manned: no spare, and none may be started. A host that is silent right now
        may still come back with its spares. `freed`: hosts of those that would be ended to make the ranks vacant."""
        missing = vacancies - self._usable_spares(at, freed)
        if missing <= 0:
            return None
        no_way = self.cannot_start(at, freed)
        if no_way is None and missing > sum(self._room_for_ranks(host, freed) for host in self._willing(at, freed)):
            no_way = self._too_few_devices(vacancies) or because(Code.NO_ROOM, count=vacancies)
        silent = (self.hosts.by_id[id_] for id_ in self.hosts.silent)
        hope = no_way is not None and any(self._room(host) or self.roster.spares_on.get(host.id) for host in silent)
        return None if hope else no_way

    def has_spare_for(self, rank: Rank, at: float) -> bool:
        """Is there a spare that could have this rank, in the place that it leaves or in another?"""
        return rank in self.roster.holders and self._usable_spares(at, (self.roster.holder(rank).host,)) > 0

    def can_take(self, at: float) -> bool:
        """Can a rank be given away right now?"""
        return self._usable_spares(at) > 0 or self.cannot_start(at) is None

    def room_for_a_world(self, at: float) -> bool:
        """Could all ranks begin anew on the hosts that are well?"""
        well = (host for host in self.hosts.present() if self.hosts.usable(host.id, at))
        return sum(_most_ranks(host) for host in well) >= self.policy.world_size

    def no_room_for_the_world(self) -> Reason:
        world = self.policy.world_size
        return self._too_few_devices(world) or because(Code.NO_ROOM_FOR_WORLD, count=world)

    def _too_few_devices(self, ranks: int) -> Reason | None:
        """If some were lost: that is why."""
        lost = [f"{device} of {host.id}" for host in self.hosts.present() for device in sorted(host.lost_devices)]
        return because(Code.TOO_FEW_DEVICES, count=ranks, lost=tuple(lost)) if lost else None

    def _usable_spares(self, at: float, freed: Sequence[HostId] = ()) -> int:
        return sum(
            min(count, self._places_left(self.hosts.by_id[host], freed))
            for host, count in self.roster.spares_on.items()
            if count and self.hosts.usable(host, at)
        )

    def has_spares(self, wanted: int, at: float, freed: Sequence[HostId]) -> bool:
        """Are so many spares there or on their way, with a place for each? `freed`: as for `cannot_fill`."""
        return self._usable_spares(at, freed) >= wanted

    def warm_spares(self, at: float) -> int:
        """Linear in the number of spares."""
        return sum(self.hosts.usable(self.roster.members[id_].host, at) for id_ in self.roster.parked)

    def is_empty_for_good(self, at: float) -> bool:
        """No spare is there or on its way where a rank may go, or could go if one left its device; and none is
        wanted."""
        hosts, spares_on = self.hosts, self.roster.spares_on
        waiting = (hosts.by_id[host] for host, count in spares_on.items() if count and hosts.usable(host, at))
        return not any(self._slots_left(host) for host in waiting if _has_device(host)) and not self.is_low(at)

    def _willing(self, at: float, freed: Sequence[HostId] = ()) -> list[Host]:
        return [host for host in self.hosts.present() if self._cannot_seat_on(host, at, freed) is None]

    # -- giving a rank away -------------------------------------------------------------------------------------------

    def take(
        self,
        rank: Rank,
        at: float,
        home: HostId | None,
        stay: bool = False,
        device: tuple[HostId, int] | None = None,
    ) -> tuple[Member, list[Command]]:
        """The best member for a vacant rank: a warm spare, else a starting one, else a new process. `home`: where the
        rank was. `stay`: as long as that host is well the rank stays there, for nothing hurries. `device`: the one that
        the rank had. Its shadow is liked best: what it computes is the same to the last bit. But if it was lost a
        spare device is, and the shadows of other ranks stay where they are."""
        stay = stay and home is not None and self.hosts.usable(home, at)

        def preference(member: Member) -> tuple[bool, bool, bool] | None:
            host = self.hosts.by_id.get(member.host)
            if host is None or not self.hosts.usable(host.id, at) or not self._places_left(host):
                return None
            if stay and host.id != home:
                return None
            return host.id != home, host.ranks > 0, self._leaves_device(member, host, device)

        member = self.roster.best_spare(preference)
        if member is not None:
            return member, []
        return self.start(rank, self._where_to_start(at, home))

    def _where_to_start(self, at: float, home: HostId | None) -> HostId:
        """A world that starts over may start processes anywhere, also where no spares are wanted."""
        well = [host for host in self.hosts.present() if self.hosts.usable(host.id, at)]
        candidates = self._willing(at) or well or list(self.hosts.by_id.values())
        return min(
            candidates, key=lambda host: (not self._room_for_ranks(host), host.id != home, host.ranks > 0, host.place)
        ).id

    def start(self, rank: Rank | None, host: HostId, first: bool = False) -> tuple[Member, list[Command]]:
        member = self.roster.new_spare(host)
        if not first:
            self.state.replacements += 1
        if rank is None:
            devices.give_to_spare(member, self.hosts.by_id[host], self.roster)
        seat = None if rank is None else Seat(rank=rank)
        return member, [StartMember(member=member.id, seat=seat, host=host, device=self.roster.device_of(member))]

    def _leaves_device(self, member: Member, host: Host, device: tuple[HostId, int] | None) -> bool:
        """Is it another process than the shadow of that device; or, if that was lost, one without a spare device?"""
        if not host.devices:
            return False
        own = self.roster.device_of(member)
        if device is not None and device[0] == host.id and device[1] in host.well_devices:
            return own != device[1]
        return own not in devices.use_of(host, self.roster).free_of_ranks

    def warm_spare_for_move(self, rank: Rank, at: float) -> Member | None:
        """For a rank that need not hurry: a warm one, elsewhere if possible, because whatever speaks against the rank's
        present place probably speaks against its host."""
        return self.warm_spare(None, at, leaves=self.roster.holder(rank).host)

    def warm_spare(self, home: HostId | None, at: float, leaves: HostId | None = None) -> Member | None:
        """`leaves`: the host on which the rank gives up its place, and which is taken only if there is no other."""
        freed = () if leaves is None else (leaves,)

        def preference(member: Member) -> tuple[bool, bool] | None:
            host = self.hosts.by_id.get(member.host)
            if host is None or not self.hosts.usable(host.id, at) or not self._places_left(host, freed):
                return None
            host_matters = host.id == leaves or (home is not None and host.id != home)
            return host_matters, host.ranks > 0

        return self.roster.best_spare(preference, warm=True)

    def surplus(self, host: Host) -> list[Member]:
        """Spares beyond what a host is to keep, the coldest first."""
        spares = [*reversed(self.roster.starting), *reversed(self.roster.parked)]
        there = [self.roster.members[id_] for id_ in spares if self.roster.members[id_].host == host.id]
        return there[: max(0, len(there) - host.spares)]

    # -- filling up ---------------------------------------------------------------------------------------------------

    def is_low(self, at: float) -> bool:
        return any(self._missing(host) for host in self.hosts.present() if self.hosts.usable(host.id, at))

    def next_chance(self, at: float) -> float | None:
        """When the first host that lacks spares is free of suspicion."""
        lacking = (host for host in self.hosts.present() if host.suspect_until > at and self._missing(host))
        return min((host.suspect_until for host in lacking), default=None)

    def _missing(self, host: Host) -> int:
        """Where there are several hosts a rank that has moved leaves room for a spare."""
        if not _has_device(host):
            return 0
        if len(self.hosts.by_id) > 1:
            return self._room(host)
        return max(0, host.spares - self.roster.spares_on.get(host.id, 0))

    def refill(
        self, at: float, generation: Generation, reason: Reason = _POOL_LOW, first: bool = False
    ) -> list[Command]:
        """Bring the pool of every host back to its size, or say once why not."""
        commands: list[Command] = []
        for host in self.hosts.present():
            for _ in range(self._missing(host)):
                if not first and not self.hosts.usable(host.id, at):
                    break  # later: when it has spoken, or when the suspicion is over
                no_way = None if first else self._no_refill(host, at)
                if no_way is not None:
                    commands += self._complain(at, generation, no_way)
                    break
                member, start = self.start(None, host.id, first)
                if not first:
                    commands.append(
                        RecordDecision(
                            at=at, generation=generation, kind=DecisionKind.REFILL, member=member.id, reason=reason
                        )
                    )
                commands += [*start, *self._tell_device(at, generation, member, host)]
        return commands

    def _tell_device(self, at: float, generation: Generation, member: Member, host: Host) -> list[Command]:
        why = devices.why_this_one(member, host, self.roster)
        if why is None:
            return []
        return [RecordDecision(at=at, generation=generation, kind=DecisionKind.DEVICE, member=member.id, reason=why)]

    def _no_refill(self, host: Host, at: float) -> Reason | None:
        if self.state.replacements >= self.policy.max_replacements:
            return self.cannot_start(at)
        return self._cannot_start_on(host, at)

    def _complain(self, at: float, generation: Generation, why: Reason) -> list[Command]:
        if self.state.complained:
            return []
        self.state.complained = True
        return [RecordDecision(at=at, generation=generation, kind=DecisionKind.NO_REFILL, reason=why)]


def _has_device(host: Host) -> bool:
    """Or does it need none?"""
    return not host.devices or bool(host.well_devices)


def _most_ranks(host: Host) -> int:
    most = min(host.ranks + host.spares, host.places)
    return min(most, len(host.well_devices)) if host.devices else most
