"""Hosts that come, fall silent, speak again or are lost. The hosts themselves are kept in `hosts`."""

from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import Command, DecisionKind, DismissStranger, Outcome, StopJob, WatchClosely
from understudy.protocol.context import Context
from understudy.protocol.ending import EndingState
from understudy.protocol.hosts import Host, Hosts
from understudy.protocol.member_loss import MemberLoss
from understudy.protocol.migration import Migration
from understudy.protocol.policy import Policy
from understudy.protocol.reasons import Code, Reason, because
from understudy.protocol.refill import Refill
from understudy.protocol.roster import Member, Roster
from understudy.protocol.round import Round
from understudy.protocol.stages import Stage
from understudy.protocol.watchdog import Watchdog


class HostEvents:
    def __init__(
        self,
        policy: Policy,
        hosts: Hosts,
        roster: Roster,
        round_: Round,
        migration: Migration,
        refill: Refill,
        watchdog: Watchdog,
        member_loss: MemberLoss,
        ending: EndingState,
        context: Context,
    ) -> None:
        self.policy, self.hosts, self.roster, self.round = policy, hosts, roster, round_
        self.migration, self.refill, self.watchdog, self.member_loss = migration, refill, watchdog, member_loss
        self.ending, self.context = ending, context

    def host_joined(self, event: ev.HostJoined) -> list[Command]:
        """Before the world is founded hosts gather. Later ones, and those that come back, are for spares."""
        known = self.hosts.by_id.get(event.host)
        if known is not None and known.present and self.round.state.generation:
            return []  # it is there already
        if self.round.state.generation == 0:
            if not self.hosts.by_id:
                self.round.state.opened_at = event.at  # when the first of them came
            self.watchdog.state.gathering(event.at)
            self.hosts.join(event.host, event.ranks, event.spares, event.place, event.store, event.devices)
            enough = self.hosts.founding_ranks >= self.policy.world_size
            return self.context.found(event.at) if enough and self.hosts.founding_hosts >= self.policy.hosts else []
        self.hosts.join(event.host, 0, event.ranks + event.spares, event.place, event.store, event.devices)
        room = event.ranks + event.spares
        if known is None:
            note = because(Code.HOST_JOINED, host=event.host, count=room)
        else:
            note = because(Code.HOST_BACK, host=event.host, count=room)
        return [self.round.decision(event.at, DecisionKind.HOST, note), *self.refill.now(event.at, note)]

    def host_silent(self, event: ev.HostSilent) -> list[Command]:
        """One host is lost soon, if others are still heard: a few are asked to say something. If most are silent at
        once, more likely this coordinator is cut off: then they have as long to find it again as after a takeover."""
        hosts, policy = self.hosts, self.policy
        suspected_itself = hosts.most_are_silent
        hosts.fall_silent(hosts.by_id[event.host], event.at, policy.host_patience)
        hosts.by_id[event.host].left |= event.left
        if not hosts.most_are_silent:
            return [WatchClosely(generation=self.round.state.generation, hosts=tuple(hosts.witnesses()))]
        hosts.be_patient(policy.takeover_patience)
        if suspected_itself:
            return []
        note = because(
            Code.HOSTS_SILENT,
            silent=len(hosts.silent),
            present=len(hosts.present()),
            patience=policy.takeover_patience,
            usual=policy.host_patience,
        )
        return [self.round.decision(event.at, DecisionKind.HOST, note)]

    def host_heard(self, event: ev.HostHeard) -> list[Command]:
        host = self.hosts.by_id[event.host]
        host.store, host.spoke_at = event.store or host.store, event.at
        living = set(event.members)
        ours = {member.id for member in self.roster.on_host(host.id)}
        reason = because(Code.RANK_GIVEN_AWAY, host=host.id)
        commands: list[Command] = [
            DismissStranger(host=host.id, member=stranger, reason=reason) for stranger in sorted(living - ours)
        ]
        if not host.present:
            return commands  # it has to join again
        self.hosts.speak(host)
        for gone in sorted(ours - living):
            member = self.roster.members.get(gone)  # an earlier one may have made the world start over
            cause = Cause(kind=CauseKind.DISMISSED, detail=f"it is not on host {host.id} any more")
            if member is not None and not _stops(commands):
                commands += self._with_its_agent(event.at, member, host)
                commands += self.member_loss.on_lost(event.at, member, cause)
        if _stops(commands):
            return commands
        self.refill.soon(event.at)
        still = [member for id_ in sorted(ours & living) if (member := self.roster.members.get(id_)) is not None]
        commands += self.round.outbound.tell_again(still)
        if self.round.state.stage is Stage.STOPPING and self.round.state.established:
            commands += self.round.man_and_record(event.at)  # it may have the spares that were missing
        return self.context.after(event.at, commands)

    def hosts_lost(self, at: float, lost: list[Host]) -> list[Command]:
        """All members of all these hosts at once, in one generation: a switch may take many hosts with it."""
        reasons: list[Reason] = []
        commands: list[Command] = []
        for host in lost:
            why = because(Code.HOST_SILENT, seconds=at - (host.silent_since or at))
            needed = (self.member_loss.needed_for(member) for member in self.roster.on_host(host.id))
            ranks = sorted(rank for rank in needed if rank is not None)
            orderly = host.left and not ranks  # nothing is held against its next agent
            self.hosts.lose(host, at if orderly else at + self.policy.suspicion)
            commands += self._remove_members(at, host, why)
            if ranks:
                reasons.append(because(Code.HOST_LOST, host=host.id, ranks=tuple(ranks), why=why))
            else:
                note = because(Code.SPARE_HOST_LOST, host=host.id, why=why)
                commands.append(self.round.decision(at, DecisionKind.HOST, note))
        if not reasons:
            return self.context.after(at, commands)  # its spares may have been a hope
        reason = reasons[0] if len(reasons) == 1 else because(Code.HOSTS_LOST, hosts=tuple(reasons))
        if self.ending.released:
            return commands + self.context.stop(at, Outcome.FAILED, because(Code.LOST_AT_THE_END, cause=reason), 1)
        return commands + self.context.open(at, reason, DecisionKind.SWAP)

    def _remove_members(self, at: float, host: Host, why: Reason) -> list[Command]:
        commands: list[Command] = []
        for member in self.roster.on_host(host.id):
            commands += self._with_its_agent(at, member, host)
            if self.roster.is_understudy(member):
                commands += self.migration.on_understudy_lost(at, member, why)
            self.roster.remove(member)
            self.ending.finished.discard(member.id)
            self.round.state.killed.discard(member.id)
        self.watchdog.state.fault_seen()
        return commands

    def _with_its_agent(self, at: float, member: Member, host: Host) -> list[Command]:
        """For the ledger: what this member recorded last may not have come further than to its host."""
        if self.member_loss.needed_for(member) is None:
            return []
        reason = because(Code.LOST_WITH_AGENT, member=member.id, host=host.id)
        return [self.round.decision(at, DecisionKind.HOST, reason, rank=member.rank, member=member.id)]


def _stops(commands: list[Command]) -> bool:
    return any(isinstance(command, StopJob) for command in commands)
