"""A state of the small world as one hashable value: equal values behave equally from here on.

Left out: words, times and counters whose limits are out of reach. Everything else that the machine, the members or the
links remember must be here; a field that is forgotten would make the explorer skip states.
"""

from typing import TYPE_CHECKING

from understudy.foundation.ids import MemberId
from understudy.protocol import events as ev
from understudy.protocol.commands import (
    AbandonGeneration,
    AskCheckpoints,
    AskStep,
    AssignRank,
    Command,
    ReleaseMembers,
    ResumeAt,
)
from understudy.protocol.job import JobMachine
from understudy_testkit.simulator.device import DeviceMember
from understudy_testkit.simulator.device_side import DeviceSideMember
from understudy_testkit.simulator.member import SimulatedMember

if TYPE_CHECKING:
    from understudy_testkit.simulator.explorer import Branch

Snapshot = tuple[object, ...]


MACHINE = MemberId("")
"""Under which the machine's own key is kept beside those of members."""


def snapshot_key(branch: "Branch") -> int:
    """A 64-bit number in place of the snapshot itself: among ten million states the chance that two different ones
    share a number is about 1 in 400,000."""
    return hash(_anonymous(branch) if branch.untouched else _complete(branch))


def _anonymous(branch: "Branch") -> Snapshot:
    """Before the first fault: how many ranks are in which situation, but not which."""
    machine = branch.machine
    ranks = sorted(
        repr(
            (
                _member(member)[3:],
                [_event(event) for event in branch.upward.get(member.id, ())],
                [_command(command) for command in branch.downward.get(member.id, ())],
                [name for name, guests in sorted(branch.meetings.items()) if guests >> member.rank & 1],
                member.id in machine.ending.finished,
                member.rank in machine.round.state.twin_keys,
                member.rank in machine.ending.left,
            )
        )
        for member in branch.members.values()
        if member.rank is not None
    )
    return (
        *ranks,
        frozenset(machine.ending.left),
        machine.stage.value,
        machine.released,
        len(branch.members),
        branch.invariants.committed,
        branch.outcome is not None,
    )


def _complete(branch: "Branch") -> Snapshot:
    seen, keys = branch.invariants, branch.keys
    if MACHINE not in keys:
        keys[MACHINE] = hash(_machine(branch.machine))
    for id_, member in branch.members.items():
        if id_ not in keys:
            keys[id_] = hash(_member(member))
    return (
        frozenset(keys.items()),
        frozenset(branch.meetings.items()),
        frozenset((id_, tuple(map(_event, events))) for id_, events in branch.upward.items()),
        frozenset((id_, tuple(map(_command, commands))) for id_, commands in branch.downward.items()),
        (branch.faults, branch.moves, branch.ticks),
        (seen.committed, seen.recorded, seen.verdict),
        frozenset((rank, *entry) for rank, entry in seen.actors.items() if entry[1] in branch.members),
        frozenset(seen.ended.items()),
        (frozenset(branch.peer_memory.items()), frozenset(seen.by_rank.items()), branch.machine.round.state.absent),
        branch.outcome is not None and branch.outcome.reason,
    )


def _machine(machine: JobMachine) -> Snapshot:
    recovery, roster = machine.round.state, machine.roster
    plan = recovery.plan
    return (
        machine.stage.value,
        recovery.generation,
        recovery.founded_in,
        recovery.established,
        frozenset(recovery.awaited),
        frozenset(recovery.joining),
        frozenset(recovery.positions.items()),
        frozenset(recovery.twin_keys.items()),
        frozenset(recovery.holdings),
        None if plan is None else (plan.generation, plan.step, plan.donors, plan.rung, plan.distrust),
        (recovery.probation, recovery.kind),
        frozenset(recovery.killed),
        (frozenset(recovery.durable.items()), frozenset(recovery.asked_for_checkpoints)),
        tuple(
            (member.id, member.standing.value, member.rank, member.connected, member.assigned_in, member.leaving)
            for member in roster.members.values()
        ),
        (frozenset(roster.understudies.items()), frozenset(roster.leavers.items())),
        (frozenset(machine.migration.state.reasons), frozenset(machine.migration.state.told.items())),
        (recovery.boundary, frozenset(recovery.leavers_at.items())),
        frozenset(roster.holders.items()),
        tuple(roster.parked),
        tuple(roster.starting),
        roster.next_number,
        frozenset(machine.ending.finished),
        frozenset(machine.ending.left),
        machine.released,
        (machine.pool.state.refill_at is not None, machine.watchdog.state.contact_lost is not None),
    )


def _member(member: SimulatedMember) -> Snapshot:
    return (
        member.id,
        member.phase.value,
        member.rank,
        member.assigned_in,
        member.heard,
        member.acting,
        member.state,
        member.attempt,
        member.arrived,
        member.established,
        member.parked,
        member.resumed,
        member.receives,
        member.donors,
        member.target,
        member.meeting,
        member.boundary,
        (member.leaves, member.saves, member.poisoned),
        (member.tail, member.in_tail, member.resumes_in_tail),
        (member.corrupt, member.copies, member.kept, member.saving, member.spoilt, member.watches_until),
        (member.queue, member.garbage, member.aborted, member.failing) if isinstance(member, DeviceMember) else (),
        _of_device_side(member) if isinstance(member, DeviceSideMember) else (),
    )


def _of_device_side(member: DeviceSideMember) -> Snapshot:
    return (member.flags_aborted, member.goes_on_at, member.unread, member.results, member.old_sums)


def _event(event: ev.Event) -> Snapshot:
    return (
        type(event).__name__,
        getattr(event, "generation", 0),
        getattr(event, "position", None),
        getattr(event, "twin_key", None),
        getattr(event, "step", None),
        getattr(event, "saved", None),
    )


def _command(command: Command) -> Snapshot:
    match command:
        case AssignRank():
            return ("assign", command.rank, command.slot, command.generation, command.founding)
        case AbandonGeneration():
            return ("abandon", command.generation, command.boundary)
        case AskStep():
            return ("ask", command.generation)
        case AskCheckpoints():
            return ("ask for checkpoints", command.generation)
        case ResumeAt():
            return ("resume", command.generation, command.step, command.donors, command.leavers, command.rung)
        case ReleaseMembers():
            return ("release", command.generation)
    raise AssertionError(f"{command!r} is not said to members")
