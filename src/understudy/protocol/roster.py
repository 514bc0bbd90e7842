"""Who holds which rank, and who is spare. Every operation costs the same however many members there are."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from understudy.foundation.ids import Generation, HostId, MemberId, Rank
from understudy.protocol.hosts import THIS_HOST


class Standing(enum.Enum):
    STARTING = "starting"  # a spare that is not warm yet
    PARKED = "parked"  # a warm spare
    JOINING = "joining"  # has a rank, runs setup and rehearsal in its sandbox
    PREPARED = "prepared"  # rehearsed; waits for groups and state
    ACTIVE = "active"  # trains


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

    def new_spare(self, host: HostId = THIS_HOST) -> Member:
        member = Member(MemberId(f"m-{self.next_number}"), Standing.STARTING, host)
        self.spares_on[host] = self.spares_on.get(host, 0) + 1
        self.next_number += 1
        self.members[member.id] = member
        self.starting[member.id] = None
        return member

    def park(self, member: Member) -> None:
        member.standing = Standing.PARKED
        self.starting.pop(member.id, None)
        self.parked[member.id] = None

    def best_spare(self, preference: Callable[[Member], Any | None]) -> Member | None:
        """A warm one if there is one, else one that was started. Among these the one whose `preference` is least, and
        of equals the one that came first; None is never taken. Linear in the number of spares."""
        for pool in (self.parked, self.starting):
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
        self.holders[rank] = member.id

    def remove(self, member: Member) -> None:
        del self.members[member.id]
        self._no_spare_any_more(member)
        if member.rank is not None:
            if self.holders.get(member.rank) == member.id:
                del self.holders[member.rank]
            self.slots.get(member.host, {}).pop(member.slot, None)

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

    @property
    def spare_count(self) -> int:
        return len(self.parked) + len(self.starting)

    def copy(self) -> "Roster":
        return Roster(
            {id_: replace(member) for id_, member in self.members.items()},
            dict(self.holders),
            dict(self.parked),
            dict(self.starting),
            self.next_number,
            {host: dict(taken) for host, taken in self.slots.items()},
            dict(self.spares_on),
        )
