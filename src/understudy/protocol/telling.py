"""What members are told in a recovery, and told again: messages may be lost, and hosts come back. To hear something
twice does no harm."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from understudy.foundation.ids import MemberId
from understudy.protocol.commands import AbandonGeneration, AskCheckpoints, AssignRank, Command
from understudy.protocol.roster import Member, Standing
from understudy.protocol.stages import Stage

if TYPE_CHECKING:
    from understudy.protocol.recovery import Recovery


def assign(recovery: "Recovery", member: Member) -> list[Command]:
    """Tell a member its rank, once it can be told."""
    if member.rank is None or not member.connected:
        return []
    return [
        AssignRank(
            member=member.id,
            rank=member.rank,
            slot=member.slot,
            store=recovery.store,
            generation=member.assigned_in,
            founded_in=recovery.founded_in,
            founding=member.founder,
        )
    ]


def leave(recovery: "Recovery", members: Iterable[Member]) -> list[Command]:
    """Tell members to leave their generation: at the boundary, if there is one. A joiner is in no step; and who only
    prepares for a rank takes no part."""
    bound: list[MemberId] = []
    free: list[MemberId] = []
    for member in members:
        if recovery.roster.is_understudy(member):
            continue
        in_steps = recovery.boundary is not None and member.standing is Standing.ACTIVE
        (bound if in_steps else free).append(member.id)
    generation, reason = recovery.generation, recovery.reason
    commands: list[Command] = []
    if bound:
        commands.append(
            AbandonGeneration(generation=generation, members=tuple(bound), reason=reason, boundary=recovery.boundary)
        )
    if free:
        commands.append(AbandonGeneration(generation=generation, members=tuple(free), reason=reason))
    return commands


def catch_up(recovery: "Recovery", members: Iterable[Member]) -> list[Command]:
    """Tell members that got their rank in an older generation which one it is now: they may not have heard."""
    if recovery.stage not in (Stage.STOPPING, Stage.FORMING):
        return []
    late = (m for m in members if m.connected and m.rank is not None and m.assigned_in < recovery.generation)
    return leave(recovery, late)


def ask_for_checkpoints(recovery: "Recovery") -> list[Command]:
    asked = tuple(sorted(recovery.asked_for_checkpoints))
    return [AskCheckpoints(generation=recovery.generation, members=asked)] if asked else []


def say_again(recovery: "Recovery") -> list[Command]:
    """What was not answered."""
    members = recovery.roster.members
    if recovery.stage is Stage.FORMING and recovery.plan is not None:
        awaited = [members[id_] for id_ in sorted(recovery.awaited)]
        return [*catch_up(recovery, (m for m in awaited if m.standing is Standing.PREPARED)), recovery.plan]
    if recovery.stage is not Stage.STOPPING:
        return []
    silent = (members[id_] for id_ in sorted(recovery.awaited) if members[id_].connected)
    commands = leave(recovery, silent)
    joining = [members[id_] for id_ in sorted(recovery.joining)]
    for member in joining:
        commands += assign(recovery, member)
    return commands + catch_up(recovery, joining) + ask_for_checkpoints(recovery)


def tell_again(recovery: "Recovery", members: list[Member]) -> list[Command]:
    """A host is connected again: what its members may not have heard. The order to kill one may have been lost too."""
    seated = [member for member in members if member.rank is not None]
    ids = tuple(member.id for member in seated if member.connected)
    recovery.killed.difference_update(ids)
    commands: list[Command] = []
    for member in seated:
        if member.standing is Standing.JOINING or recovery.stage is Stage.FOUNDING:
            commands += assign(recovery, member)
    if recovery.stage is Stage.STOPPING and ids:
        commands += leave(recovery, (member for member in seated if member.connected))
    elif recovery.stage is Stage.FORMING and recovery.plan is not None and ids:
        leavers = set(recovery.plan.leavers) & set(ids)
        staying = tuple(id_ for id_ in ids if id_ not in leavers)
        told = replace(recovery.plan, members=staying, leavers=tuple(sorted(leavers)))
        commands += [*catch_up(recovery, seated), told]
    return commands
