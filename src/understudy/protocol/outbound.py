"""What members are told in a recovery, and told again: messages may be lost, and hosts come back. To hear something
twice does no harm."""

from collections.abc import Iterable

from msgspec import structs

from understudy.foundation.ids import MemberId
from understudy.protocol.commands import AbandonGeneration, AskCheckpoints, AssignRank, Command
from understudy.protocol.policy import Policy
from understudy.protocol.roster import Member, Roster, Standing
from understudy.protocol.round_state import RoundState
from understudy.protocol.stages import Stage


class Outbound:
    def __init__(self, policy: Policy, roster: Roster, state: RoundState) -> None:
        self.policy, self.roster, self.state = policy, roster, state

    def assign(self, member: Member) -> list[Command]:
        """Tell a member its rank, once it can be told."""
        if member.rank is None or not member.connected:
            return []
        return [
            AssignRank(
                member=member.id,
                rank=member.rank,
                slot=member.slot,
                store=self.state.store,
                generation=member.assigned_in,
                founded_in=self.state.founded_in,
                founding=member.founder,
                world_size=self.policy.world_size,
                local_world_size=self.policy.ranks_per_host,
                device=self.roster.device_of(member),
            )
        ]

    def leave(self, members: Iterable[Member]) -> list[Command]:
        """Tell members to leave their generation: at the boundary, if there is one. A joiner is in no step; and an
        understudy takes no part."""
        bound: list[MemberId] = []
        free: list[MemberId] = []
        for member in members:
            if self.roster.is_understudy(member):
                continue
            in_steps = self.state.boundary is not None and member.standing is Standing.ACTIVE
            (bound if in_steps else free).append(member.id)
        leavers, holders = self.roster.leavers, self.roster.holders
        return [
            AbandonGeneration(
                generation=self.state.generation,
                members=tuple(told),
                reason=self.state.reason,
                boundary=boundary,
                leavers=tuple(leavers.values()),
                takers=tuple(holders[rank] for rank in leavers if rank in holders),
            )
            for told, boundary in ((bound, self.state.boundary), (free, None))
            if told
        ]

    def catch_up(self, members: Iterable[Member]) -> list[Command]:
        """Tell members that got their rank in an older generation which one it is now: they may not have heard."""
        if self.state.stage not in (Stage.STOPPING, Stage.FORMING):
            return []
        late = (m for m in members if m.connected and m.rank is not None and m.assigned_in < self.state.generation)
        return self.leave(late)

    def ask_for_checkpoints(self) -> list[Command]:
        asked = tuple(sorted(self.state.asked_for_checkpoints))
        return [AskCheckpoints(generation=self.state.generation, members=asked)] if asked else []

    def say_again(self) -> list[Command]:
        """What was not answered."""
        members = self.roster.members
        if self.state.stage is Stage.FORMING and self.state.plan is not None:
            awaited = [members[id_] for id_ in sorted(self.state.awaited)]
            return [*self.catch_up(m for m in awaited if m.standing is Standing.PREPARED), self.state.plan]
        if self.state.stage is not Stage.STOPPING:
            return []
        silent = (members[id_] for id_ in sorted(self.state.awaited) if members[id_].connected)
        commands = self.leave(silent)
        joining = [members[id_] for id_ in sorted(self.state.joining)]
        for member in joining:
            commands += self.assign(member)
        return commands + self.catch_up(joining) + self._catch_up_asked() + self.ask_for_checkpoints()

    def _catch_up_asked(self) -> list[Command]:
        """A member that prepared in an older generation answers no question of a newer one that it has not heard of."""
        asked = (self.roster.members[id_] for id_ in sorted(self.state.asked_for_checkpoints))
        return self.catch_up(member for member in asked if member.standing is Standing.PREPARED)

    def tell_again(self, members: list[Member]) -> list[Command]:
        """A host is connected again: what its members may not have heard. The order to kill one may have been lost
        too."""
        seated = [member for member in members if member.rank is not None]
        ids = tuple(member.id for member in seated if member.connected)
        self.state.killed.difference_update(ids)
        commands: list[Command] = []
        for member in seated:
            if member.standing is Standing.JOINING or self.state.stage is Stage.FOUNDING:
                commands += self.assign(member)
        if self.state.stage is Stage.STOPPING and ids:
            commands += self.leave(member for member in seated if member.connected)
        elif self.state.stage is Stage.FORMING and self.state.plan is not None and ids:
            leavers = set(self.state.plan.leavers) & set(ids)
            staying = tuple(id_ for id_ in ids if id_ not in leavers)
            told = structs.replace(self.state.plan, members=staying, leavers=tuple(sorted(leavers)))
            commands += [*self.catch_up(seated), told]
        return commands
