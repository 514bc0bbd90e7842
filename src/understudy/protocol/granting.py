"""Requests of people, monitors and detectors: which are granted, and what follows. Everything refused has a reason.

A request never makes a membership by itself. What it asks for goes the same way as every fault; and where granting it
would end the job, or leave too few ranks well, it is refused.
"""

from typing import TYPE_CHECKING

from understudy.foundation.ids import HostId, Rank
from understudy.protocol.commands import Command, DecisionKind, KillMember, RecordDecision
from understudy.protocol.donors import named, without_twin
from understudy.protocol.hosts import Host
from understudy.protocol.requests import (
    AbortGeneration,
    DrainHost,
    KeepSpares,
    MoveRanks,
    ReplaceRank,
    Request,
    UndrainHost,
)
from understudy.protocol.roster import Standing
from understudy.protocol.stages import Stage

if TYPE_CHECKING:
    from understudy.protocol.job import JobMachine

MOST_SPARES = 1000


def refusal(machine: "JobMachine", request: Request) -> str | None:
    """Why this would not be done now, in words for whoever asks."""
    if machine.stopped is not None or machine.released:
        return "the job is at its end"
    if not machine.recovery.established:
        return "the world has not committed its first step yet; ask again later"
    match request:
        case MoveRanks(ranks=ranks):
            return _no_move(machine, request.at, ranks)
        case DrainHost(host=host):
            return _no_drain(machine, request.at, host)
        case UndrainHost(host=host):
            return _no_undrain(machine, request.at, host)
        case ReplaceRank():
            return _no_replacement(machine, request)
        case AbortGeneration():
            return _busy(machine) or _too_few_are_well(machine, 0)
        case KeepSpares(host=host, spares=spares):
            if host not in machine.hosts.by_id:
                return _no_such_host(machine, host)
            return None if 0 <= spares <= MOST_SPARES else f"a host can keep 0 to {MOST_SPARES} spares"
    return f"nobody knows what to do with a {type(request).__name__}"


def grant(machine: "JobMachine", request: Request) -> list[Command]:
    no_way = refusal(machine, request)
    if no_way is not None:
        return [
            _note(machine, request, DecisionKind.REFUSE, f"refused, because {no_way}. It was asked: {request.reason}")
        ]
    match request:
        case MoveRanks(ranks=ranks):
            return machine.want_moved(request.at, ranks, request.reason)
        case DrainHost(host=host):
            return _drain(machine, request, host)
        case UndrainHost(host=host):
            return _undrain(machine, request, host)
        case ReplaceRank(rank=rank):
            return machine.recovery.kill(request.at, [machine.roster.holder(rank)], request.reason)
        case AbortGeneration():
            return machine.open_now(request.at, request.reason)
        case KeepSpares(host=host, spares=spares):
            return _keep_spares(machine, request, host, spares)
    raise AssertionError(f"no rule for {request!r}")


# -- refusing ---------------------------------------------------------------------------------------------------------


def _no_move(machine: "JobMachine", at: float, ranks: tuple[Rank, ...]) -> str | None:
    unknown = [rank for rank in ranks if not 0 <= rank < machine.policy.world_size]
    if unknown or not ranks:
        return f"there is no {named(unknown) or 'such rank'}: ranks are 0 to {machine.policy.world_size - 1}"
    under_way = [rank for rank in ranks if rank in machine.migration.reasons or rank in machine.roster.leavers]
    if under_way:
        return f"{named(under_way)} {'is' if len(under_way) == 1 else 'are'} on the way already"
    absent = [rank for rank in ranks if rank in machine.recovery.absent]
    if absent:
        return f"{named(absent)} {'is' if len(absent) == 1 else 'are'} absent: the world goes on without"
    if machine.pool.has_spare_for(ranks[0], at):
        return None
    no_room = machine.pool.cannot_fill(1, at)  # one after another will do
    return None if no_room is None else f"there is nobody to take over: {no_room}"


def _no_drain(machine: "JobMachine", at: float, host: HostId) -> str | None:
    known = machine.hosts.by_id.get(host)
    if known is None or not known.present:
        return _no_such_host(machine, host)
    if known.draining:
        return f"host {host} is being drained already"
    known.draining = True  # for the question only
    try:
        ranks = _ranks_on(machine, host)
        no_room = machine.pool.cannot_fill(len(ranks), at) if ranks else None
    finally:
        known.draining = False
    return None if no_room is None else f"there is no room elsewhere for {named(ranks)}: {no_room}"


def _no_undrain(machine: "JobMachine", at: float, host: HostId) -> str | None:
    known = machine.hosts.by_id.get(host)
    if known is None or not known.present:
        return _no_such_host(machine, host)
    return None if _held_against(known, at) else f"nothing is held against host {host}: ranks may go there"


def _held_against(host: Host, at: float) -> str:
    held = []
    if host.draining:
        held.append("it was drained")
    if host.suspect_until > at:
        held.append(f"it was under suspicion for {host.suspect_until - at:.0f} s more")
    if host.failures_in_a_row:
        held.append(f"spares had died there before they were warm ({host.failures_in_a_row} in a row)")
    return ", ".join(held)


def _no_replacement(machine: "JobMachine", request: ReplaceRank) -> str | None:
    rank = request.rank
    if not 0 <= rank < machine.policy.world_size:
        return f"there is no rank {rank}: ranks are 0 to {machine.policy.world_size - 1}"
    if (busy := _busy(machine)) is not None:
        return busy
    if rank in machine.recovery.absent:
        return f"rank {rank} is absent: the world goes on without it"
    holder = machine.roster.holder(rank)
    if request.member is not None and holder.id != request.member:
        return f"rank {rank} is held by {holder.id} now, and not by {request.member}"
    recovery = machine.recovery
    if rank in without_twin(recovery.twin_keys, recovery.holdings) and not machine.policy.peer_memory:
        return f"rank {rank} has no twin, and to end it would end the job; move it instead"
    no_spare = None if machine.pool.has_spare_for(rank, request.at) else machine.pool.cannot_fill(1, request.at)
    return f"there is nobody to take over: {no_spare}" if no_spare else _too_few_are_well(machine, 1)


def _busy(machine: "JobMachine") -> str | None:
    return None if machine.stage is Stage.TRAINING else "the world is being formed again right now"


def _too_few_are_well(machine: "JobMachine", taken: int) -> str | None:
    silent = machine.hosts.silent
    well = sum(member.standing is Standing.ACTIVE and member.host not in silent for member in machine.roster.seated())
    if machine.policy.healthy_enough(well - taken):
        return None
    return f"only {well} of {machine.policy.world_size} ranks are well (--min-healthy)"


def _no_such_host(machine: "JobMachine", host: HostId) -> str:
    return f"there is no host {host}; present are: {', '.join(sorted(h.id for h in machine.hosts.present())[:20])}"


# -- granting ---------------------------------------------------------------------------------------------------------


def _drain(machine: "JobMachine", request: DrainHost, host: HostId) -> list[Command]:
    machine.hosts.by_id[host].draining = True
    ranks = _ranks_on(machine, host)
    note = f"host {host} is drained ({named(ranks) if ranks else 'it holds no rank'}): {request.reason}"
    moving = machine.want_moved(request.at, ranks, _drained(host) + request.reason)
    return [_note(machine, request, DecisionKind.HOST, note), machine.recovery.record(), *moving]


def _undrain(machine: "JobMachine", request: UndrainHost, host: HostId) -> list[Command]:
    """A rank for which somebody prepares already moves all the same: to call that off would cost as much."""
    known = machine.hosts.by_id[host]
    note = f"host {host} is used again ({_held_against(known, request.at)}): {request.reason}"
    machine.hosts.readmit(known)
    commands: list[Command] = [_note(machine, request, DecisionKind.HOST, note), machine.recovery.record()]
    for rank in _ranks_on(machine, host):
        if (
            machine.migration.reasons.get(rank, "").startswith(_drained(host))
            and rank not in machine.roster.understudies
        ):
            commands += machine.migration.give_up(request.at, rank, "the drain was called off")
    return commands + machine.refill_now(request.at, request.reason)


def _drained(host: HostId) -> str:
    return f"host {host} is drained: "


def _keep_spares(machine: "JobMachine", request: Request, host: HostId, spares: int) -> list[Command]:
    known = machine.hosts.by_id[host]
    note = f"host {host} keeps {spares} spares from now on, not {known.spares}: {request.reason}"
    known.spares = spares
    machine.hosts.offer_spares |= spares > 0
    surplus = machine.pool.surplus(known)
    dismissals = [KillMember(member=spare.id, reason="there are more spares than wanted") for spare in surplus]
    for spare in surplus:
        machine.roster.remove(spare)  # from now on no rank goes there, and its end says nothing about the host
    commands: list[Command] = [_note(machine, request, DecisionKind.HOST, note), machine.recovery.record(), *dismissals]
    return commands if dismissals else commands + machine.refill_now(request.at, request.reason)


def _ranks_on(machine: "JobMachine", host: HostId) -> tuple[Rank, ...]:
    holders = (machine.roster.members[id_] for id_ in machine.roster.holders.values())
    return tuple(sorted(member.rank for member in holders if member.host == host and member.rank is not None))


def _note(machine: "JobMachine", request: Request, kind: DecisionKind, reason: str) -> RecordDecision:
    return RecordDecision(at=request.at, generation=machine.generation, kind=kind, reason=reason)
