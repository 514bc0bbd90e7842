"""Hosts that come, fall silent, speak again or are lost. Called only by `job`; who is there is kept in `hosts`."""

from typing import TYPE_CHECKING

from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import Command, DecisionKind, DismissStranger, Outcome, StopJob, WatchClosely
from understudy.protocol.donors import named
from understudy.protocol.hosts import Host
from understudy.protocol.losses import needed_for, on_lost
from understudy.protocol.roster import Member
from understudy.protocol.stages import Stage
from understudy.protocol.telling import tell_again

if TYPE_CHECKING:
    from understudy.protocol.job import JobMachine


def host_joined(machine: "JobMachine", event: ev.HostJoined) -> list[Command]:
    """Before the world is founded hosts gather. Later ones, and those that come back, are for spares."""
    known = machine.hosts.by_id.get(event.host)
    if known is not None and known.present and machine.generation:
        return []  # it is there already
    if machine.generation == 0:
        if not machine.hosts.by_id:
            machine.recovery.opened_at = event.at  # when the first of them came
        machine.watchdog.gathering(event.at)
        machine.hosts.join(event.host, event.ranks, event.spares, event.place, event.store)
        enough = machine.hosts.founding_ranks >= machine.policy.world_size
        return machine.begin(event.at) if enough and machine.hosts.founding_hosts >= machine.policy.hosts else []
    machine.hosts.join(event.host, 0, event.ranks + event.spares, event.place, event.store)
    back = "is back" if known is not None else "has joined"
    note = f"host {event.host} {back}, with room for {event.ranks + event.spares} spares"
    return [machine.decision(event.at, DecisionKind.HOST, note), *machine.refill_now(event.at, note)]


def host_silent(machine: "JobMachine", event: ev.HostSilent) -> list[Command]:
    """One host is lost soon, if others are still heard: a few are asked to say something. If most are silent at once,
    more likely this coordinator is cut off: then they have as long to find it again as after a takeover."""
    hosts, policy = machine.hosts, machine.policy
    suspected_itself = hosts.most_are_silent
    hosts.fall_silent(hosts.by_id[event.host], event.at, policy.host_patience)
    if not hosts.most_are_silent:
        return [WatchClosely(generation=machine.generation, hosts=tuple(hosts.witnesses()))]
    hosts.be_patient(policy.takeover_patience)
    if suspected_itself:
        return []
    note = (
        f"{len(hosts.silent)} of {len(hosts.present())} hosts fell silent at once: this coordinator may be cut off "
        f"itself, so they have {policy.takeover_patience:g} s to come back, instead of {policy.host_patience:g} s"
    )
    return [machine.decision(event.at, DecisionKind.HOST, note)]


def host_heard(machine: "JobMachine", event: ev.HostHeard) -> list[Command]:
    host = machine.hosts.by_id[event.host]
    host.store, host.spoke_at = event.store or host.store, event.at
    living = set(event.members)
    ours = {member.id for member in machine.roster.on_host(host.id)}
    reason = f"its rank was given to another process while host {host.id} was away"
    commands: list[Command] = [
        DismissStranger(host=host.id, member=stranger, reason=reason) for stranger in sorted(living - ours)
    ]
    if not host.present:
        return commands  # it has to join again
    machine.hosts.speak(host)
    for gone in sorted(ours - living):
        member = machine.roster.members.get(gone)  # an earlier one may have made the world start over
        cause = Cause(kind=CauseKind.DISMISSED, detail=f"it is not on host {host.id} any more")
        if member is not None and not _stops(commands):
            commands += _with_its_agent(machine, event.at, member, host)
            commands += on_lost(machine, event.at, member, cause)
    if _stops(commands):
        return commands
    machine.refill_soon(event.at)
    still = [member for id_ in sorted(ours & living) if (member := machine.roster.members.get(id_)) is not None]
    commands += tell_again(machine.recovery, still)
    if machine.stage is Stage.STOPPING and machine.recovery.established:
        commands += machine.man_vacancies(event.at)  # it may have the spares that were missing
    return machine.after(event.at, commands)


def hosts_lost(machine: "JobMachine", at: float, lost: list[Host]) -> list[Command]:
    """All members of all these hosts at once, in one generation: a switch may take many hosts with it."""
    reasons: list[str] = []
    commands: list[Command] = []
    for host in lost:
        why = f"it was silent for {at - (host.silent_since or at):.1f} s"
        machine.hosts.lose(host, at + machine.policy.suspicion)
        needed = (needed_for(machine, member) for member in machine.roster.on_host(host.id))
        ranks = sorted(rank for rank in needed if rank is not None)
        commands += _remove_members(machine, at, host, why)
        if ranks:
            reasons.append(f"host {host.id} was lost with {named(ranks)}: {why}")
        else:
            note = f"host {host.id} was lost: {why}; it held no rank"
            commands.append(machine.decision(at, DecisionKind.HOST, note))
    if not reasons:
        return machine.after(at, commands)  # its spares may have been a hope
    reason = "; ".join(reasons)
    if machine.released:
        return commands + machine.stop(at, Outcome.FAILED, f"{reason}, while the scripts came to their end", 1)
    return commands + machine.open(at, reason, DecisionKind.SWAP)


def _remove_members(machine: "JobMachine", at: float, host: Host, why: str) -> list[Command]:
    commands: list[Command] = []
    for member in machine.roster.on_host(host.id):
        commands += _with_its_agent(machine, at, member, host)
        if machine.roster.is_understudy(member):
            commands += machine.migration.on_understudy_lost(at, member, why)
        machine.roster.remove(member)
        machine.finished.discard(member.id)
        machine.recovery.killed.discard(member.id)
    machine.watchdog.fault_seen()
    return commands


def _with_its_agent(machine: "JobMachine", at: float, member: Member, host: Host) -> list[Command]:
    """For the ledger: what this member recorded last may not have come further than to its host."""
    if needed_for(machine, member) is None:
        return []
    reason = f"{member.id} was lost with the agent of host {host.id}"
    return [machine.recovery.decision(at, DecisionKind.HOST, reason, rank=member.rank, member=member.id)]


def _stops(commands: list[Command]) -> bool:
    return any(isinstance(command, StopJob) for command in commands)
