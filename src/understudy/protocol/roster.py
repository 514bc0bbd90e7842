"""Who holds which rank, and who is spare. Every operation costs the same however many members there are."""

import enum
from dataclasses import dataclass, field, replace

from understudy.foundation.ids import Generation, MemberId, Rank


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
    rank: Rank | None = None
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

    def new_spare(self) -> Member:
        member = Member(MemberId(f"m-{self.next_number}"), Standing.STARTING)
        self.next_number += 1
        self.members[member.id] = member
        self.starting[member.id] = None
        return member

    def park(self, member: Member) -> None:
        member.standing = Standing.PARKED
        self.starting.pop(member.id, None)
        self.parked[member.id] = None

    def best_spare(self) -> Member | None:
        """A warm one if there is one, else the one that was started first."""
        for pool in (self.parked, self.starting):
            for member in pool:
                return self.members[member]
        return None

    def seat(self, member: Member, rank: Rank, standing: Standing, generation: Generation, at: float) -> None:
        """Give a spare the rank. The rank must be vacant."""
        assert rank not in self.holders, f"rank {rank} is held by {self.holders[rank]}"
        self.parked.pop(member.id, None)
        self.starting.pop(member.id, None)
        member.rank, member.standing = rank, standing
        member.assigned_in, member.assigned_at = generation, at
        self.holders[rank] = member.id

    def remove(self, member: Member) -> None:
        del self.members[member.id]
        self.parked.pop(member.id, None)
        self.starting.pop(member.id, None)
        if member.rank is not None and self.holders.get(member.rank) == member.id:
            del self.holders[member.rank]

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
        )
