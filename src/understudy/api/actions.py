"""Asks the job for what a person or an alert wants: the guard of the machine first, then the request, then the audit.

There is no await between looking and asking. So two requests that come at the same time are handled one after the
other, and neither a key nor an alert can act twice.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from understudy.api import views
from understudy.api.alerts import Alert, Moment, consider
from understudy.api.audit import Audit
from understudy.api.job import JobInterface, NotLeading
from understudy.api.limits import Bucket, Buckets, Limits, Memory
from understudy.api.metrics import Metrics
from understudy.api.models import ActionAnswer, AlertAnswer, Refusal
from understudy.api.registry import Registry
from understudy.api.rules import Rules
from understudy.api.tokens import Caller
from understudy.foundation.clock import Clock
from understudy.protocol.advice import advice_on
from understudy.protocol.job import JobMachine
from understudy.protocol.reasons import Reason
from understudy.protocol.requests import Request
from understudy.protocol.sentences import sentence

_LONGEST_LABEL = 200  # letters of a label's value in the audit
_SHORTEST_MEMORY = 3600.0  # seconds for which an alert that acted is remembered


@dataclass(frozen=True, slots=True)
class Answer:
    """With its HTTP status."""

    status: int
    content: ActionAnswer | Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionCall:
    """One action as it came: `body` in bytes, for comparing it with a second one under the same key."""

    action: str
    body: bytes
    asked: Mapping[str, object]
    dry_run: bool
    key: str = ""


class WallClock(Protocol):
    def __call__(self) -> float: ...


class Actions:
    """Everything that changes something passes here."""

    def __init__(
        self,
        interface: JobInterface,
        *,
        audit: Audit,
        metrics: Metrics,
        rules: Rules,
        registry: Registry,
        limits: Limits,
        clock: Clock,
        wall: WallClock,
    ) -> None:
        self.buckets = Buckets(limits)
        self._interface, self._audit, self._metrics = interface, audit, metrics
        self._rules, self._registry = rules, registry
        self._clock, self.wall = clock, wall
        self._keys: Memory[tuple[str, str], tuple[bytes, Answer]] = Memory(limits.keys, limits.key_seconds)
        remembered = max(_SHORTEST_MEMORY, 2 * rules.max_age)
        self._acted: Memory[str, bool] = Memory(limits.alerts, remembered)
        self._noted: Memory[str, str] = Memory(limits.alerts, remembered)

    # -- actions ------------------------------------------------------------------------------------------------------

    def act(self, caller: Caller, call: ActionCall, request: Request) -> Answer:
        """Raises `NotLeading`."""
        now = self._clock.now()
        digest = hashlib.sha256(f"{call.action}\n".encode() + call.body).digest()
        if call.key:
            known = self._keys.get((caller.name, call.key), now)
            if known is not None and known[0] != digest:
                self._metrics.action(call.action, "key used twice")
                return Answer(409, _KEY_USED)
            if known is not None:
                self._metrics.action(call.action, "repeated")
                return known[1]
        answer = self._decide(caller, call, request)
        if call.key:
            self._keys.put((caller.name, call.key), (digest, answer), now)
        return answer

    def _decide(self, caller: Caller, call: ActionCall, request: Request) -> Answer:
        machine = leading(self._interface)
        why_not = machine.refusal(request)
        before = self._interface.event_stream.newest
        if why_not is None and not call.dry_run:
            self._interface.handle(request)
        outcome = "accepted" if why_not is None else "refused"
        said = f"would be {outcome}" if call.dry_run else outcome
        reason = request.reason if why_not is None else sentence(why_not)
        self._metrics.action(call.action, said)
        self._audit.write(
            self._interface,
            caller=caller.name,
            action=call.action,
            outcome=said,
            reason=reason,
            asked=call.asked,
            key=call.key,
            dry_run=call.dry_run,
        )
        if why_not is not None and not call.dry_run:
            return Answer(409, Refusal(reason=reason, code=why_not.code, advice=advice_on(why_not, _IN_DOUBT)))
        return Answer(200, self._told(call, machine, why_not, before, reason))

    def _told(
        self, call: ActionCall, machine: JobMachine, why_not: Reason | None, before: int, reason: str
    ) -> ActionAnswer:
        advice = f"follow it with `understudy events --follow`, or GET /v1/events?after={before}"
        if call.dry_run:
            advice = "leave out the dry run to do it" if why_not is None else advice_on(why_not, _IN_DOUBT)
        return ActionAnswer(
            action=call.action,
            outcome=("would be accepted" if why_not is None else "would be refused") if call.dry_run else "accepted",
            dry_run=call.dry_run,
            reason=reason,
            code=None if why_not is None else why_not.code,
            advice=advice,
            generation=machine.generation,
            follow=before,
            decisions=[views.event(numbered) for numbered in self._interface.event_stream.after(before, 50)],
        )

    # -- alerts -------------------------------------------------------------------------------------------------------

    def hear(self, caller: Caller, alert: Alert) -> AlertAnswer:
        """What became of one alert. Raises `NotLeading`."""
        machine = leading(self._interface)
        answer = self._hear(caller, alert, machine)
        self._metrics.alert(caller.name, answer.outcome)
        return answer

    def _hear(self, caller: Caller, alert: Alert, machine: JobMachine) -> AlertAnswer:
        now = self._clock.now()
        if not alert.firing:
            return _said(alert, "note", "resolved", "nothing is undone when an alert is resolved")
        if self._acted.get(alert.key, now):
            return _said(alert, "note", "duplicate", "this alert has acted already")
        moment = Moment(machine=self._interface.now(), wall=self.wall())
        thought = consider(alert, self._rules, self._registry, machine, moment)
        action, request = thought.action.value, thought.request
        if request is None:
            self._note(caller, alert, action, "noted", thought.why)
            return _said(alert, action, "noted", thought.why)
        refusal = machine.refusal(request)
        why_not = None if refusal is None else sentence(refusal)
        if why_not is None and self._acted.full(now):
            why_not = "too many alerts have acted lately; this one could not be told from a repetition"
        if why_not is not None:
            self._note(caller, alert, action, "refused", why_not)
            return _said(alert, action, "refused", why_not, code="" if refusal is None else refusal.code)
        wait = self.buckets.take(caller.name, Bucket.ACT, now)
        if wait:
            return _said(alert, action, "put off", f"too many actions of {caller.name}; again in {wait:.1f} s")
        self._acted.put(alert.key, True, now)  # before anything happens, so that nothing can happen twice
        self._interface.handle(request)
        self._write(caller, alert, action, "accepted", thought.why)
        return _said(alert, action, "accepted", thought.why)

    def _note(self, caller: Caller, alert: Alert, action: str, outcome: str, why: str) -> None:
        """Monitors say the same again and again; it is written down once. A storm of alerts must not fill the disk:
        what is not written down is still answered and counted."""
        now = self._clock.now()
        if self._noted.get(alert.key, now) != outcome and not self.buckets.take(caller.name, Bucket.NOTE, now):
            self._noted.put(alert.key, outcome, now)
            self._write(caller, alert, action, outcome, why)

    def _write(self, caller: Caller, alert: Alert, action: str, outcome: str, why: str) -> None:
        labels = {name: value[:_LONGEST_LABEL] for name, value in alert.labels.items()}
        asked = {"alert": alert.name[:256], "source": alert.source, "labels": labels, "started": alert.started}
        self._audit.write(
            self._interface, caller=caller.name, action=action, outcome=outcome, reason=why, asked=asked, key=alert.key
        )


def leading(interface: JobInterface) -> JobMachine:
    machine = interface.machine()
    if machine is None:
        raise NotLeading(interface.leads(), interface.leader())
    return machine


def _said(alert: Alert, action: str, outcome: str, reason: str, code: str = "") -> AlertAnswer:
    return AlertAnswer.model_validate(
        {"alert": alert.name[:256], "action": action, "outcome": outcome, "reason": reason, "code": code}
    )


_KEY_USED = Refusal(
    reason="this Idempotency-Key was used with another request",
    advice="give every new request a key of its own; repeat a request with exactly the same body",
)
_IN_DOUBT = "look at `understudy status`, and ask again when the job is training"
