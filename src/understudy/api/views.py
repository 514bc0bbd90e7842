"""From the machine and the event stream to what is shown. Reads only, and every page is made at one moment."""

from collections.abc import Mapping

import msgspec

from understudy.api.event_stream import Numbered
from understudy.api.job import JobInterface
from understudy.api.models import EventView, GoodputView, HostView, JobView, MemberView, Overview, RecoveryView
from understudy.foundation.ids import HostId, MemberId
from understudy.ledger.goodput import Goodput
from understudy.ledger.records import DecisionRecord, RecoveryRecord
from understudy.protocol.hosts import Host
from understudy.protocol.job import JobMachine
from understudy.protocol.reasons import fields_of
from understudy.protocol.roster import Member, Standing
from understudy.protocol.sentences import sentence

_SEATED = (Standing.JOINING, Standing.PREPARED, Standing.ACTIVE)


def job(interface: JobInterface, leader_url: str | None) -> JobView:
    machine = interface.machine()
    recoveries = interface.event_stream.recoveries(200)
    stopped = None if machine is None else machine.stopped
    committed = interface.committed()
    absent = [] if machine is None else sorted(machine.round.state.absent)
    return JobView(
        job=interface.name,
        leading=interface.leads(),
        leader=interface.leader(),
        leader_url=leader_url,
        generation=None if machine is None else machine.generation,
        stage=None if machine is None else machine.stage.value,
        world_size=None if machine is None else machine.policy.world_size,
        ranks_up=0 if machine is None else sum(member.connected for member in machine.roster.seated()),
        committed_step=committed.step,
        committed_step_unchanged_seconds=committed.unchanged_for,
        degraded=bool(absent),
        absent_ranks=list(absent),
        spares_warm=0 if machine is None else len(machine.roster.parked),
        spares_starting=0 if machine is None else len(machine.roster.starting),
        predicted_recovery_seconds=interface.event_stream.predicted_recovery(),
        recoveries=interface.event_stream.recovered,
        last_recovery=recovery(recoveries[-1], interface.now()) if recoveries else None,
        goodput=goodput(interface.goodput()),
        newest_event=interface.event_stream.newest,
        outcome=None if stopped is None else stopped.outcome.value,
        reason=None if stopped is None else sentence(stopped.reason),
        code=None if stopped is None else stopped.reason.code,
        fields={} if stopped is None else fields_of(stopped.reason),
    )


def goodput(account: Goodput | None) -> GoodputView | None:
    if account is None:
        return None
    return GoodputView(
        ratio=account.ratio,
        seconds=account.total,
        productive=account.productive,
        setup=account.setup,
        recovering=account.recovering,
        repeated=account.repeated,
        degraded=account.degraded,
        sentence=account.sentence(),
    )


def overview(interface: JobInterface, leader_url: str | None) -> Overview:
    machine, whole = interface.machine(), job(interface, leader_url)
    if machine is None:
        return Overview(job=whole, members=[], spares=[], hosts=[])
    known = hosts(machine, interface.now(), interface.certificate_ends())
    return Overview(job=whole, members=members(interface, machine), spares=spares(machine), hosts=known)


def members(interface: JobInterface, machine: JobMachine) -> list[MemberView]:
    steps = interface.steps()
    return [_member(member, steps.get(member.id)) for member in machine.roster.seated()]


def rank_counts(machine: JobMachine) -> dict[str, int]:
    """Every rank once. `absent`: the world goes on without it, even if a member holds it. `vacant`: it is waited
    for."""
    absent, world = machine.round.state.absent, machine.policy.world_size
    standings = [member.standing for member in machine.roster.seated() if member.rank not in absent]
    counts = {standing.value: standings.count(standing) for standing in _SEATED}
    return {**counts, "vacant": max(0, world - len(absent) - len(standings)), "absent": len(absent)}


def spares(machine: JobMachine) -> list[MemberView]:
    roster = machine.roster
    waiting: list[MemberId] = [*roster.parked, *roster.starting, *roster.understudies.values()]
    return [_member(roster.members[id_], None) for id_ in waiting]


def _member(member: Member, step: int | None) -> MemberView:
    return MemberView(
        member=member.id,
        host=member.host,
        standing=member.standing.value,
        rank=member.rank,
        slot=None if member.rank is None else member.slot,
        step=step,
        connected=member.connected,
    )


def hosts(machine: JobMachine, now: float, certificate_ends: Mapping[HostId, int]) -> list[HostView]:
    ranks: dict[HostId, list[int]] = {}
    for member in machine.roster.seated():
        if member.rank is not None:
            ranks.setdefault(member.host, []).append(member.rank)
    warm = [machine.roster.members[id_].host for id_ in machine.roster.parked]
    starting = [machine.roster.members[id_].host for id_ in machine.roster.starting]
    return [
        HostView(
            host=host.id,
            state=host_state(host, now),
            ranks=ranks.get(host.id, []),
            spares_wanted=host.spares,
            spares_warm=warm.count(host.id),
            spares_starting=starting.count(host.id),
            suspect_for_seconds=max(0.0, host.suspect_until - now),
            certificate_ends=certificate_ends.get(host.id),
        )
        for host in machine.hosts.by_id.values()
    ]


def host_state(host: Host, now: float) -> str:
    if not host.present:
        return "lost"
    if host.silent_since is not None:
        return "silent"
    if host.draining:
        return "draining"
    return "suspect" if host.suspect_until > now else "present"


def recovery(record: RecoveryRecord, now: float) -> RecoveryView:
    return RecoveryView(
        kind=recovery_kind(record),
        generation=record.generation,
        step=record.step,
        reasons=list(record.reasons),
        codes=list(record.codes),
        verdict=record.verdict,
        swaps=list(record.swaps),
        phases=dict(record.phases),
        received_bytes=record.received_bytes,
        seconds_ago=max(0.0, now - record.at),
    )


def event(numbered: Numbered) -> EventView:
    record = numbered.record
    is_decision = isinstance(record, DecisionRecord)
    return EventView(
        number=numbered.number,
        type="decision" if is_decision else "recovery",
        kind=record.kind if isinstance(record, DecisionRecord) else recovery_kind(record),
        reason=record.reason if isinstance(record, DecisionRecord) else "; ".join(record.reasons),
        code=record.code if isinstance(record, DecisionRecord) else (*record.codes, "")[0],
        generation=record.generation,
        details=msgspec.to_builtins(record),
    )


def recovery_kind(record: RecoveryRecord) -> str:
    """Whether a rank was replaced, and whether that was planned."""
    if record.planned:
        return "move"
    return "swap" if record.swaps else "regroup"


def missed(after: int, first: int | None) -> int:
    """How many events after `after` are not kept any more."""
    return 0 if first is None else max(0, first - after - 1)
