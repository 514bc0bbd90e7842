"""What follows when twins have told their digests: a state on which all agree, or somebody whose bytes differ.

The comparison itself is in `agreement`. Called only by `job`.
"""

from typing import TYPE_CHECKING

from understudy.protocol import events as ev
from understudy.protocol.agreement import Finding
from understudy.protocol.commands import Command, DecisionKind, KeepAgreed, KillMember, Outcome
from understudy.protocol.probation import distrust
from understudy.protocol.roster import Member
from understudy.protocol.stages import Stage

if TYPE_CHECKING:
    from understudy.protocol.job import JobMachine


def on_digest(machine: "JobMachine", event: ev.DigestTold, member: Member) -> list[Command]:
    current = event.generation == machine.generation and machine.stage is Stage.TRAINING and not machine.released
    if not current or member.rank is None or machine.roster.holders.get(member.rank) != member.id:
        return []
    recovery = machine.recovery
    present, keys, copied = recovery.present_count, recovery.twin_keys, event.copied
    never_before = machine.agreement.agreed is None
    finding = machine.agreement.take(member.rank, event.step, event.digest, present, keys, copied)
    if finding is None or (finding.agreed and not copied):
        return []
    if finding.agreed:
        everybody = tuple(holder.id for holder in recovery.present())
        keep = KeepAgreed(generation=machine.generation, members=everybody, step=finding.step)
        return [recovery.record(), keep] if never_before else [keep]  # a successor must know that one can go back
    return _on_disagreement(machine, event.at, finding)


def _on_disagreement(machine: "JobMachine", at: float, finding: Finding) -> list[Command]:
    agreed = machine.agreement.agreed
    since = "no state was agreed on before" if agreed is None else f"all agreed before step {agreed}"
    reason = f"{finding}; {since}"
    if finding.torn and machine.agreement.torn_at == finding.step:
        return machine.stop(at, Outcome.FAILED, f"{reason}; to compute it again did not help", 1)
    machine.agreement.torn_at = finding.step if finding.torn else None
    machine.recovery.rewind = agreed is not None
    probation = machine.recovery.probation
    if agreed is None and probation is not None and probation.covers(finding.step):
        reason = distrust(machine, reason, must=not finding.odd)  # without the odd one, the others are in agreement
    noted: list[Command] = [machine.decision(at, DecisionKind.CORRUPT, reason), machine.recovery.record()]
    if not finding.odd:
        return noted + machine.open(at, reason, DecisionKind.ALARM)
    ended = [machine.roster.holder(rank).id for rank in finding.odd]
    machine.recovery.killed.update(ended)
    return noted + [KillMember(member=member, reason=reason) for member in ended]
