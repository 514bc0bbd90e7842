"""Requests of people, monitors and detectors: which are granted, and what follows. Everything refused has a reason.

A request never makes a membership by itself. What it asks for goes the same way as every fault; and where granting it
would end the job, or leave too few ranks well, it is refused.
"""

from understudy.foundation.ids import HostId, Rank
from understudy.protocol.commands import Command, DecisionKind, KillMember, RecordDecision
from understudy.protocol.context import Context
from understudy.protocol.donors import named, without_twin
from understudy.protocol.ending import EndingState
from understudy.protocol.hosts import Host, Hosts
from understudy.protocol.migration import Migration
from understudy.protocol.policy import Policy
from understudy.protocol.pool import SparePool
from understudy.protocol.refill import Refill
from understudy.protocol.requests import (
    AbortGeneration,
    DrainHost,
    KeepSpares,
    MoveRanks,
    ReplaceRank,
    Request,
    UndrainHost,
)
from understudy.protocol.roster import Roster, Standing
from understudy.protocol.round import Round
from understudy.protocol.stages import Stage
from understudy.protocol.watchdog import Watchdog

MOST_SPARES = 1000


class Admission:
    def __init__(
        self,
        policy: Policy,
        hosts: Hosts,
        roster: Roster,
        pool: SparePool,
        round_: Round,
        migration: Migration,
        refill: Refill,
        watchdog: Watchdog,
        ending: EndingState,
        context: Context,
    ) -> None:
        self.policy, self.hosts, self.roster, self.pool = policy, hosts, roster, pool
        self.round, self.migration, self.refill, self.watchdog = round_, migration, refill, watchdog
        self.ending, self.context = ending, context

    def refusal(self, request: Request) -> str | None:
        """Why this would not be done now, in words for whoever asks."""
        if self.ending.stopped is not None or self.ending.released:
            return "the job is at its end"
        if not self.round.state.established:
            return "the world has not committed its first step yet; ask again later"
        match request:
            case MoveRanks(ranks=ranks):
                return self._no_move(request.at, ranks)
            case DrainHost(host=host):
                return self._no_drain(request.at, host)
            case UndrainHost(host=host):
                return self._no_undrain(request.at, host)
            case ReplaceRank():
                return self._no_replacement(request)
            case AbortGeneration():
                return self._busy() or self._too_few_are_well(0)
            case KeepSpares(host=host, spares=spares):
                if host not in self.hosts.by_id:
                    return self._no_such_host(host)
                return None if 0 <= spares <= MOST_SPARES else f"a host can keep 0 to {MOST_SPARES} spares"
        return f"nobody knows what to do with a {type(request).__name__}"

    def grant(self, request: Request) -> list[Command]:
        no_way = self.refusal(request)
        if no_way is not None:
            return [
                self._note(request, DecisionKind.REFUSE, f"refused, because {no_way}. It was asked: {request.reason}")
            ]
        match request:
            case MoveRanks(ranks=ranks):
                return self._want_moved(request.at, ranks, request.reason)
            case DrainHost(host=host):
                return self._drain(request, host)
            case UndrainHost(host=host):
                return self._undrain(request, host)
            case ReplaceRank(rank=rank):
                return self.round.kill(request.at, [self.roster.holder(rank)], request.reason)
            case AbortGeneration():
                return self._open_now(request)
            case KeepSpares(host=host, spares=spares):
                return self._keep_spares(request, host, spares)
        raise AssertionError(f"no rule for {request!r}")

    # -- refusing ------------------------------------------------------------------------------------------------------

    def _no_move(self, at: float, ranks: tuple[Rank, ...]) -> str | None:
        unknown = [rank for rank in ranks if not 0 <= rank < self.policy.world_size]
        if unknown or not ranks:
            return f"there is no {named(unknown) or 'such rank'}: ranks are 0 to {self.policy.world_size - 1}"
        under_way = [rank for rank in ranks if rank in self.migration.state.reasons or rank in self.roster.leavers]
        if under_way:
            return f"{named(under_way)} {'is' if len(under_way) == 1 else 'are'} on the way already"
        absent = [rank for rank in ranks if rank in self.round.state.absent]
        if absent:
            return f"{named(absent)} {'is' if len(absent) == 1 else 'are'} absent: the world goes on without"
        if self.pool.has_spare_for(ranks[0], at):
            return None
        no_room = self.pool.cannot_fill(1, at)  # one after another will do
        return None if no_room is None else f"there is nobody to take over: {no_room}"

    def _no_drain(self, at: float, host: HostId) -> str | None:
        known = self.hosts.by_id.get(host)
        if known is None or not known.present:
            return self._no_such_host(host)
        if known.draining:
            return f"host {host} is being drained already"
        known.draining = True  # for the question only
        try:
            ranks = self._ranks_on(host)
            no_room = self.pool.cannot_fill(len(ranks), at) if ranks else None
        finally:
            known.draining = False
        return None if no_room is None else f"there is no room elsewhere for {named(ranks)}: {no_room}"

    def _no_undrain(self, at: float, host: HostId) -> str | None:
        known = self.hosts.by_id.get(host)
        if known is None or not known.present:
            return self._no_such_host(host)
        return None if _held_against(known, at) else f"nothing is held against host {host}: ranks may go there"

    def _no_replacement(self, request: ReplaceRank) -> str | None:
        rank = request.rank
        if not 0 <= rank < self.policy.world_size:
            return f"there is no rank {rank}: ranks are 0 to {self.policy.world_size - 1}"
        if (busy := self._busy()) is not None:
            return busy
        if rank in self.round.state.absent:
            return f"rank {rank} is absent: the world goes on without it"
        holder = self.roster.holder(rank)
        if request.member is not None and holder.id != request.member:
            return f"rank {rank} is held by {holder.id} now, and not by {request.member}"
        round_ = self.round.state
        if rank in without_twin(round_.twin_keys, round_.holdings) and not self.policy.peer_memory:
            return f"rank {rank} has no twin, and to end it would end the job; move it instead"
        no_spare = None if self.pool.has_spare_for(rank, request.at) else self.pool.cannot_fill(1, request.at)
        return f"there is nobody to take over: {no_spare}" if no_spare else self._too_few_are_well(1)

    def _busy(self) -> str | None:
        return None if self.round.state.stage is Stage.TRAINING else "the world is being formed again right now"

    def _too_few_are_well(self, taken: int) -> str | None:
        silent = self.hosts.silent
        well = sum(member.standing is Standing.ACTIVE and member.host not in silent for member in self.roster.seated())
        if self.policy.healthy_enough(well - taken):
            return None
        return f"only {well} of {self.policy.world_size} ranks are well (--min-healthy)"

    def _no_such_host(self, host: HostId) -> str:
        return f"there is no host {host}; present are: {', '.join(sorted(h.id for h in self.hosts.present())[:20])}"

    # -- granting ------------------------------------------------------------------------------------------------------

    def _want_moved(self, at: float, ranks: tuple[Rank, ...], reason: str) -> list[Command]:
        return self.migration.want(at, ranks, reason) + self.migration.go_on(at)

    def _open_now(self, request: Request) -> list[Command]:
        self.watchdog.state.fault_seen()  # somebody has a reason for it
        return self.context.open(request.at, request.reason, DecisionKind.ALARM)

    def _drain(self, request: DrainHost, host: HostId) -> list[Command]:
        self.hosts.by_id[host].draining = True
        ranks = self._ranks_on(host)
        note = f"host {host} is drained ({named(ranks) if ranks else 'it holds no rank'}): {request.reason}"
        moving = self._want_moved(request.at, ranks, _drained(host) + request.reason)
        return [self._note(request, DecisionKind.HOST, note), self.round.record(), *moving]

    def _undrain(self, request: UndrainHost, host: HostId) -> list[Command]:
        """A rank for which somebody prepares already moves all the same: to call that off would cost as much."""
        known = self.hosts.by_id[host]
        note = f"host {host} is used again ({_held_against(known, request.at)}): {request.reason}"
        self.hosts.readmit(known)
        commands: list[Command] = [self._note(request, DecisionKind.HOST, note), self.round.record()]
        for rank in self._ranks_on(host):
            if (
                self.migration.state.reasons.get(rank, "").startswith(_drained(host))
                and rank not in self.roster.understudies
            ):
                commands += self.migration.give_up(request.at, rank, "the drain was called off")
        return commands + self.refill.now(request.at, request.reason)

    def _keep_spares(self, request: Request, host: HostId, spares: int) -> list[Command]:
        known = self.hosts.by_id[host]
        note = f"host {host} keeps {spares} spares from now on, not {known.spares}: {request.reason}"
        known.spares = spares
        self.hosts.offer_spares |= spares > 0
        surplus = self.pool.surplus(known)
        dismissals = [KillMember(member=spare.id, reason="there are more spares than wanted") for spare in surplus]
        for spare in surplus:
            self.roster.remove(spare)  # from now on no rank goes there, and its end says nothing about the host
        commands: list[Command] = [self._note(request, DecisionKind.HOST, note), self.round.record(), *dismissals]
        return commands if dismissals else commands + self.refill.now(request.at, request.reason)

    def _ranks_on(self, host: HostId) -> tuple[Rank, ...]:
        holders = (self.roster.members[id_] for id_ in self.roster.holders.values())
        return tuple(sorted(member.rank for member in holders if member.host == host and member.rank is not None))

    def _note(self, request: Request, kind: DecisionKind, reason: str) -> RecordDecision:
        return RecordDecision(at=request.at, generation=self.round.state.generation, kind=kind, reason=reason)


def _held_against(host: Host, at: float) -> str:
    held = []
    if host.draining:
        held.append("it was drained")
    if host.suspect_until > at:
        held.append(f"it was under suspicion for {host.suspect_until - at:.0f} s more")
    if host.failures_in_a_row:
        held.append(f"spares had died there before they were warm ({host.failures_in_a_row} in a row)")
    return ", ".join(held)


def _drained(host: HostId) -> str:
    return f"host {host} is drained: "
