"""From an alert to what is asked of the job, and why. Pure: it acts on nothing and remembers nothing.

A monitor's word is evidence. It may be late, it may speak of a process that is long gone, and it may name something
that is not ours; then the alert is recorded with the reason and nothing is asked.
"""

import datetime
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from understudy.api.registry import HostTarget, Nothing, RankTarget, Registry, Target, shown
from understudy.api.rules import Rule, RuleAction, Rules, Scope
from understudy.foundation.printable import printable
from understudy.protocol.job import JobMachine
from understudy.protocol.requests import DrainHost, MoveRanks, ReplaceRank, Request

_CLOCKS_DIFFER_BY = 60.0  # seconds; an alert from further in the future is not believed
_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """`started`: seconds since 1970; None when it cannot be read. `key`: the same alert always has the same."""

    source: str
    name: str
    labels: Mapping[str, str]
    firing: bool
    started: float | None
    key: str
    said: str = ""  # in words, if the monitor gave any


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Both clocks at the same time: the machine's and the wall's, by which monitors speak."""

    machine: float
    wall: float

    def wall_of(self, at: float) -> float:
        return self.wall - (self.machine - at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consideration:
    """`request`: what to ask of the job, if anything; `why`: in either case."""

    action: RuleAction
    why: str
    request: Request | None = None


def identity(source: str, fingerprint: str, labels: Mapping[str, str], started: str) -> str:
    """One alert, however often it is posted and however its time is written. A monitor that gives no fingerprint is
    known by its labels."""
    listed = sorted(labels.items())
    mark = fingerprint or hashlib.sha256(json.dumps([source, listed]).encode("ascii")).hexdigest()
    seconds = seconds_of(started)
    return f"{mark}@{started if seconds is None else format(seconds, '.3f')}"


def seconds_of(text: str) -> float | None:
    """Of a time as monitors write it (RFC 3339), with any number of digits."""
    try:
        when = datetime.datetime.fromisoformat(text)
        return when.timestamp() if when.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def consider(alert: Alert, rules: Rules, registry: Registry, machine: JobMachine, now: Moment) -> Consideration:
    """What this alert should lead to. Whether the job does it is for the machine to say."""
    rule = rules.first(alert.name, alert.labels)
    if rule is None:
        return _noted(f"no rule fits {shown('alertname', alert.name)}")
    stale = _stale(alert, rules, now)
    if stale is not None:
        return _noted(stale)
    if rule.action is RuleAction.NOTE:
        return _noted("its rule says: only record")
    target = registry.target(alert.labels, machine.roster, list(machine.hosts.by_id))
    if isinstance(target, Nothing):
        return _noted(target.why)
    replaced = _about_a_predecessor(alert, target, now)
    if replaced is not None:
        return _noted(replaced)
    return _asked(alert, rule, target, machine, now)


def _stale(alert: Alert, rules: Rules, now: Moment) -> str | None:
    if not alert.firing:
        return "it is resolved, and nothing is undone for that"
    if alert.started is None:
        return "when it began cannot be read"
    age = now.wall - alert.started
    if age > rules.max_age:
        return f"it began {age:.0f} s ago, longer than the {rules.max_age:g} s of max_age_seconds"
    if age < -_CLOCKS_DIFFER_BY:
        return f"it begins {-age:.0f} s from now: look at the clocks"
    return None


def _about_a_predecessor(alert: Alert, target: RankTarget | HostTarget, now: Moment) -> str | None:
    """An alert from before a rank changed hands speaks of the one that held it then."""
    holders = (target,) if isinstance(target, RankTarget) else target.ranks
    if not holders or alert.started is None or any(now.wall_of(holder.since) <= alert.started for holder in holders):
        return None
    if isinstance(target, RankTarget):
        return f"it began before {target.member} took over rank {target.rank}"
    return f"it began before any rank of host {target.host} was taken over by its present holder"


def _asked(
    alert: Alert, rule: Rule, target: RankTarget | HostTarget, machine: JobMachine, now: Moment
) -> Consideration:
    reason = _reason(alert)
    scoped = _scoped(rule, target, machine)
    if isinstance(scoped, Nothing):
        return _noted(scoped.why)
    if rule.action is RuleAction.ABORT:
        if isinstance(scoped, HostTarget):
            return _noted(f"it names host {scoped.host} and no rank; abort is for one rank, use drain for a host")
        ask: Request = ReplaceRank(at=now.machine, reason=reason, rank=scoped.rank, member=scoped.member)
        return Consideration(action=rule.action, why=f"replace rank {scoped.rank} now: {reason}", request=ask)
    if isinstance(scoped, HostTarget):
        ask = DrainHost(at=now.machine, reason=reason, host=scoped.host)
        return Consideration(action=rule.action, why=f"drain host {scoped.host}: {reason}", request=ask)
    ask = MoveRanks(at=now.machine, reason=reason, ranks=(scoped.rank,))
    return Consideration(action=rule.action, why=f"move rank {scoped.rank}: {reason}", request=ask)


def _scoped(rule: Rule, target: RankTarget | HostTarget, machine: JobMachine) -> Target:
    """What the rule wants to act on. A host with a single rank names that rank, too."""
    if rule.scope is Scope.HOST and isinstance(target, RankTarget):
        held = [member for member in machine.roster.seated() if member.host == target.host]
        ranks = tuple(
            RankTarget(member.rank, member.id, member.host, member.assigned_at)
            for member in held
            if member.rank is not None
        )
        return HostTarget(target.host, ranks)
    wants_rank = rule.scope is Scope.RANK or rule.action is RuleAction.ABORT
    if wants_rank and rule.scope is not Scope.HOST and isinstance(target, HostTarget):
        if len(target.ranks) == 1:
            return target.ranks[0]
        return Nothing(f"it names host {target.host} with {len(target.ranks)} ranks, and the rule acts on one rank")
    return target


def _reason(alert: Alert) -> str:
    said = f" ({alert.said})" if alert.said else ""
    text = f"alert {alert.name} from {alert.source}{said}"
    return printable(text[:_LONGEST_REASON], instead=" ")


def _noted(why: str) -> Consideration:
    return Consideration(action=RuleAction.NOTE, why=why)
