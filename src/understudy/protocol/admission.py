"""Requests of people, monitors and detectors: which are granted, and what follows. Everything refused has a reason.

A request never makes a membership by itself. What it asks for goes the same way as every fault; and where granting it
would end the job, or leave too few ranks well, it is refused.
"""

from understudy.foundation.ids import HostId, Rank
from understudy.protocol.commands import Command, DecisionKind, KillMember, RecordDecision
from understudy.protocol.context import Context
from understudy.protocol.donors import without_twin
from understudy.protocol.ending import EndingState
from understudy.protocol.hosts import Host, Hosts
from understudy.protocol.migration import Migration
from understudy.protocol.policy import Policy
from understudy.protocol.pool import SparePool
from understudy.protocol.reasons import Code, Reason, because
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

    def refusal(self, request: Request) -> Reason | None:
        """Why this would not be done now."""
        if self.ending.stopped is not None or self.ending.released:
            return because(Code.JOB_AT_END)
        if not self.round.state.established:
            return because(Code.NO_FIRST_STEP)
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
                return None if 0 <= spares <= MOST_SPARES else because(Code.TOO_MANY_SPARES, most=MOST_SPARES)
        return because(Code.UNKNOWN_REQUEST, request=type(request).__name__)

    def grant(self, request: Request) -> list[Command]:
        no_way = self.refusal(request)
        if no_way is not None:
            return [self._note(request, DecisionKind.REFUSE, because(Code.REFUSED, why=no_way, wanted=_asked(request)))]
        match request:
            case MoveRanks(ranks=ranks):
                return self._want_moved(request.at, ranks, _asked(request))
            case DrainHost(host=host):
                return self._drain(request, host)
            case UndrainHost(host=host):
                return self._undrain(request, host)
            case ReplaceRank(rank=rank):
                return self.round.kill(request.at, [self.roster.holder(rank)], _asked(request))
            case AbortGeneration():
                return self._open_now(request)
            case KeepSpares(host=host, spares=spares):
                return self._keep_spares(request, host, spares)
        raise AssertionError(f"no rule for {request!r}")

    # -- refusing ------------------------------------------------------------------------------------------------------

    def _no_move(self, at: float, ranks: tuple[Rank, ...]) -> Reason | None:
        unknown = [rank for rank in ranks if not 0 <= rank < self.policy.world_size]
        if unknown or not ranks:
            return self._no_such_rank(*unknown)
        under_way = [rank for rank in ranks if rank in self.migration.state.reasons or rank in self.roster.leavers]
        if under_way:
            return because(Code.ALREADY_MOVING, ranks=tuple(under_way))
        absent = [rank for rank in ranks if rank in self.round.state.absent]
        if absent:
            return because(Code.RANKS_ABSENT, ranks=tuple(absent))
        if self.pool.has_spare_for(ranks[0], at):
            return None
        no_room = self.pool.cannot_fill(1, at)  # one after another will do
        return None if no_room is None else because(Code.NO_SPARE, why=no_room)

    def _no_drain(self, at: float, host: HostId) -> Reason | None:
        known = self.hosts.by_id.get(host)
        if known is None or not known.present:
            return self._no_such_host(host)
        if known.draining:
            return because(Code.ALREADY_DRAINED, host=host)
        known.draining = True  # for the question only
        try:
            ranks = self._ranks_on(host)
            no_room = self.pool.cannot_fill(len(ranks), at) if ranks else None
        finally:
            known.draining = False
        return None if no_room is None else because(Code.NO_ROOM_ELSEWHERE, ranks=ranks, why=no_room)

    def _no_undrain(self, at: float, host: HostId) -> Reason | None:
        known = self.hosts.by_id.get(host)
        if known is None or not known.present:
            return self._no_such_host(host)
        return None if _held_against(known, at) else because(Code.HOST_IN_USE, host=host)

    def _no_replacement(self, request: ReplaceRank) -> Reason | None:
        rank = request.rank
        if not 0 <= rank < self.policy.world_size:
            return self._no_such_rank(rank)
        if (busy := self._busy()) is not None:
            return busy
        if rank in self.round.state.absent:
            return because(Code.RANKS_ABSENT, ranks=(rank,))
        holder = self.roster.holder(rank)
        if request.member is not None and holder.id != request.member:
            return because(Code.OTHER_HOLDER, rank=rank, holder=holder.id, member=request.member)
        round_ = self.round.state
        if rank in without_twin(round_.twin_keys, round_.holdings) and not self.policy.peer_memory:
            return because(Code.WOULD_END_THE_JOB, rank=rank)
        no_spare = None if self.pool.has_spare_for(rank, request.at) else self.pool.cannot_fill(1, request.at)
        return because(Code.NO_SPARE, why=no_spare) if no_spare else self._too_few_are_well(1)

    def _busy(self) -> Reason | None:
        return None if self.round.state.stage is Stage.TRAINING else because(Code.RECOVERING)

    def _too_few_are_well(self, taken: int) -> Reason | None:
        silent = self.hosts.silent
        well = sum(member.standing is Standing.ACTIVE and member.host not in silent for member in self.roster.seated())
        if self.policy.healthy_enough(well - taken):
            return None
        return because(Code.TOO_FEW_HEALTHY, count=well, world=self.policy.world_size)

    def _no_such_rank(self, *ranks: Rank) -> Reason:
        return because(Code.NO_SUCH_RANK, ranks=ranks, last=self.policy.world_size - 1)

    def _no_such_host(self, host: HostId) -> Reason:
        present = sorted(known.id for known in self.hosts.present())
        return because(Code.NO_SUCH_HOST, host=host, hosts=tuple(present[:20]))

    # -- granting ------------------------------------------------------------------------------------------------------

    def _want_moved(self, at: float, ranks: tuple[Rank, ...], reason: Reason) -> list[Command]:
        return self.migration.want(at, ranks, reason) + self.migration.go_on(at)

    def _open_now(self, request: Request) -> list[Command]:
        self.watchdog.state.fault_seen()  # a recovery that was asked for is no sign of standing still
        return self.context.open(request.at, _asked(request), DecisionKind.ALARM)

    def _drain(self, request: DrainHost, host: HostId) -> list[Command]:
        self.hosts.by_id[host].draining = True
        ranks = self._ranks_on(host)
        note = because(Code.HOST_DRAINED, host=host, ranks=ranks, why=_asked(request))
        moving = self._want_moved(request.at, ranks, because(Code.DRAINED, host=host, why=_asked(request)))
        return [self._note(request, DecisionKind.HOST, note), self.round.record(), *moving]

    def _undrain(self, request: UndrainHost, host: HostId) -> list[Command]:
        """A rank for which an understudy prepares already moves all the same: to call that off would cost as much."""
        known = self.hosts.by_id[host]
        held = _held_against(known, request.at)
        note = because(Code.HOST_READMITTED, host=host, held=held, why=_asked(request))
        self.hosts.readmit(known)
        commands: list[Command] = [self._note(request, DecisionKind.HOST, note), self.round.record()]
        for rank in self._ranks_on(host):
            if _is_drained(self.migration.state.reasons.get(rank), host) and rank not in self.roster.understudies:
                commands += self.migration.give_up(request.at, rank, because(Code.DRAIN_CALLED_OFF))
        return commands + self.refill.now(request.at, _asked(request))

    def _keep_spares(self, request: Request, host: HostId, spares: int) -> list[Command]:
        known = self.hosts.by_id[host]
        note = because(Code.SPARES_WANTED, host=host, count=spares, before=known.spares, why=_asked(request))
        known.spares = spares
        self.hosts.offer_spares |= spares > 0
        surplus = self.pool.surplus(known)
        dismissals = [KillMember(member=spare.id, reason=because(Code.SURPLUS)) for spare in surplus]
        for spare in surplus:
            self.roster.remove(spare)  # from now on no rank goes there, and its end says nothing about the host
        commands: list[Command] = [self._note(request, DecisionKind.HOST, note), self.round.record(), *dismissals]
        return commands if dismissals else commands + self.refill.now(request.at, _asked(request))

    def _ranks_on(self, host: HostId) -> tuple[Rank, ...]:
        holders = (self.roster.members[id_] for id_ in self.roster.holders.values())
        return tuple(sorted(member.rank for member in holders if member.host == host and member.rank is not None))

    def _note(self, request: Request, kind: DecisionKind, reason: Reason) -> RecordDecision:
        return RecordDecision(at=request.at, generation=self.round.state.generation, kind=kind, reason=reason)


def _held_against(host: Host, at: float) -> tuple[Reason, ...]:
    held = []
    if host.draining:
        held.append(because(Code.WAS_DRAINED))
    if host.suspect_until > at:
        held.append(because(Code.WAS_SUSPECT, seconds=host.suspect_until - at))
    if host.failures_in_a_row:
        held.append(because(Code.SPARES_HAD_DIED, count=host.failures_in_a_row))
    if host.lost_devices:
        devices = tuple(str(device) for device in sorted(host.lost_devices))
        held.append(because(Code.DEVICES_WERE_LOST, devices=devices))
    return tuple(held)


def _asked(request: Request) -> Reason:
    return because(Code.REQUESTED, text=request.reason)


def _is_drained(why: Reason | None, host: HostId) -> bool:
    """Is a rank to move because this host is drained?"""
    return why is not None and why.code == Code.DRAINED and why.get("host") == host
