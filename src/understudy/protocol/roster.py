"""Which member holds which rank, and which are spare. Every operation costs the same however many members there are."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from understudy.foundation.ids import Generation, HostId, MemberId, Rank
from understudy.protocol.hosts import THIS_HOST


class Standing(enum.Enum):
    STARTING = "starting"  # a spare that is not warm yet
    PARKED = "parked"  # a warm spare
    JOINING = "joining"  # has a rank, runs setup and rehearsal in its sandbox
    PREPARED = "prepared"  # rehearsed; waits for groups and state
    ACTIVE = "active"  # trains
    BENCHED = "benched"  # has a rank and lives, but its replica is absent from the world


@dataclass(slots=True)
class Member:
    id: MemberId
    standing: Standing
    host: HostId = THIS_HOST
    rank: Rank | None = None
    slot: int = 0  # its place among the ranks of its host (the local rank)
    connected: bool = False
    assigned_in: Generation = Generation(0)
    assigned_at: float = 0.0
    founder: bool = False  # its world began with it, so that it rehearses and receives nothing
    leaving: bool = False  # its rank was given to another member, to which it still has to hand its state


@dataclass(slots=True)
class Roster:
    """Members by id, holders by rank, spares in the order in which they became usable."""

    members: dict[MemberId, Member] = field(default_factory=dict)
    holders: dict[Rank, MemberId] = field(default_factory=dict)
    parked: dict[MemberId, None] = field(default_factory=dict)
    starting: dict[MemberId, None] = field(default_factory=dict)
    next_number: int = 0
    slots: dict[HostId, dict[int, MemberId]] = field(default_factory=dict)
    spares_on: dict[HostId, int] = field(default_factory=dict)
    understudies: dict[Rank, MemberId] = field(default_factory=dict)  # prepare for a rank that another one holds
    leavers: dict[Rank, MemberId] = field(default_factory=dict)  # held a rank, and hand it over
    devices: dict[HostId, dict[MemberId, int]] = field(default_factory=dict)  # where a host has told of some

    def new_spare(self, host: HostId = THIS_HOST) -> Member:
        member = Member(MemberId(f"m-{self.next_number}"), Standing.STARTING, host)
        self.spares_on[host] = self.spares_on.get(host, 0) + 1
        self.next_number += 1
        self.members[member.id] = member
        self.starting[member.id] = None
        return member

    def take_device(self, member: Member, device: int | None) -> None:
        there = self.devices.setdefault(member.host, {})
        there.pop(member.id, None)
        if device is not None:
            there[member.id] = device

    def device_of(self, member: Member) -> int | None:
        return self.devices.get(member.host, {}).get(member.id)

    def park(self, member: Member) -> None:
        member.standing = Standing.PARKED
        self.starting.pop(member.id, None)
        self.parked[member.id] = None

    def best_spare(self, preference: Callable[[Member], Any | None], warm: bool = False) -> Member | None:
        """A warm one if there is one, else (unless it must be `warm`) one that was started. Among these the one whose
        `preference` is least, and of equals the one that came first; None is never taken. Linear in the number of
        spares."""
        for pool in (self.parked,) if warm else (self.parked, self.starting):
            liked = [
                (liking, self.members[id_]) for id_ in pool if (liking := preference(self.members[id_])) is not None
            ]
            if liked:
                return min(liked, key=lambda entry: entry[0])[1]
        return None

    def seat(
        self,
        member: Member,
        rank: Rank,
        standing: Standing,
        generation: Generation,
        at: float,
        wanted_slot: int | None = None,
    ) -> None:
        """Give a spare the rank. The rank must be vacant. `wanted_slot`: of the former holder, if it was there too."""
        assert rank not in self.holders, f"rank {rank} is held by {self.holders[rank]}"
        self._no_spare_any_more(member)
        member.slot = self._take_slot(member, wanted_slot)
        member.rank, member.standing = rank, standing
        member.assigned_in, member.assigned_at = generation, at
        member.founder = standing is Standing.ACTIVE
        self.holders[rank] = member.id

    def understudy(self, member: Member, rank: Rank, generation: Generation, at: float) -> None:
        """Let a spare prepare for a rank that another member holds. On the same host it will have the same place."""
        holder = self.holder(rank)
        self._no_spare_any_more(member)
        member.slot = holder.slot if member.host == holder.host else self._take_slot(member, None)
        member.rank, member.standing = rank, Standing.JOINING
        member.assigned_in, member.assigned_at = generation, at
        self.understudies[rank] = member.id

    def is_understudy(self, member: Member) -> bool:
        return member.rank is not None and self.understudies.get(member.rank) == member.id

    def hand_over(self, rank: Rank) -> Member:
        """The understudy holds the rank from now on. Returns the leaver."""
        leaver = self.holder(rank)
        leaver.leaving = True
        self.leavers[rank] = leaver.id
        self.promote(rank)
        return leaver

    def promote(self, rank: Rank) -> Member:
        """Give a rank to its understudy."""
        member = self.members[self.understudies.pop(rank)]
        self.holders[rank] = member.id
        self.slots.setdefault(member.host, {})[member.slot] = member.id
        return member

    def remove(self, member: Member) -> None:
        del self.members[member.id]
        self.devices.get(member.host, {}).pop(member.id, None)
        self._no_spare_any_more(member)
        if member.rank is None:
            return
        for by_rank in (self.holders, self.understudies, self.leavers):
            if by_rank.get(member.rank) == member.id:
                del by_rank[member.rank]
        taken = self.slots.get(member.host, {})
        if taken.get(member.slot) == member.id:
            del taken[member.slot]

    def _no_spare_any_more(self, member: Member) -> None:
        if self.parked.pop(member.id, 0) is None or self.starting.pop(member.id, 0) is None:
            self.spares_on[member.host] -= 1

    def _take_slot(self, member: Member, wanted: int | None) -> int:
        taken = self.slots.setdefault(member.host, {})
        slot = wanted if wanted is not None and wanted not in taken else 0
        while slot in taken:
            slot += 1
        taken[slot] = member.id
        return slot

    def count_on(self, host: HostId) -> int:
        return len(self.slots.get(host, ())) + self.spares_on.get(host, 0)

    def on_host(self, host: HostId) -> list[Member]:
        return [member for member in self.members.values() if member.host == host]

    def holder(self, rank: Rank) -> Member:
        return self.members[self.holders[rank]]

    def seated(self) -> list[Member]:
        """All members with a rank, by rank."""
        return [self.members[self.holders[rank]] for rank in sorted(self.holders)]

    def departing(self) -> list[Member]:
        return [self.members[id_] for _, id_ in sorted(self.leavers.items())]
