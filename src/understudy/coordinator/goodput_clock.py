"""Adds up where a job's time goes. It listens to the same events as others; it decides nothing.

Between two events nothing changes, so each event closes an interval, which counts for what the job did in it. When a
recovery has ended it is known how much training before it has to be done again; that much is taken off what counted.
The time from a fault until it was noticed is part of that.
"""

from dataclasses import dataclass, field

from msgspec import structs

from understudy.coordinator.steps import HostSteps
from understudy.ledger.goodput import Goodput
from understudy.protocol.commands import Command, DecisionKind, RecordDecision
from understudy.protocol.events import Event
from understudy.protocol.job import JobMachine
from understudy.protocol.reasons import Reason


@dataclass(slots=True)
class _Fault:
    """How many steps every rank was known to have committed when a recovery was opened, and since when by then."""

    step: int | None
    since: float
    pace: float


@dataclass(slots=True)
class GoodputClock:
    """`account`: up to the last event. A successor goes on with what its predecessor had."""

    account: Goodput = field(default_factory=Goodput)
    _at: float | None = None
    _fault: _Fault | None = None

    def before(self, event: Event, machine: JobMachine, steps: HostSteps) -> None:
        """The machine has not seen the event yet."""
        last, self._at = self._at, event.at if self._at is None else max(self._at, event.at)
        if last is not None:
            self._add(self._at - last, machine)
        if machine.round.trains and machine.stopped is None:
            committed = steps.committed(machine)
            self._fault = _Fault(committed.step, committed.unchanged_for or 0.0, machine.round.state.pace)
            if committed.step is not None:
                self.account = structs.replace(self.account, steps=committed.step)

    def on_command(self, command: Command) -> None:
        if isinstance(command, RecordDecision) and command.kind is DecisionKind.RESUMED and command.step is not None:
            self._take_off(command.step)

    def at(self, now: float, machine: JobMachine) -> Goodput:
        """With the interval that is not closed yet."""
        if self._at is None or now <= self._at:
            return self.account
        return _with(self.account, now - self._at, machine)

    def _add(self, seconds: float, machine: JobMachine) -> None:
        self.account = _with(self.account, seconds, machine)

    def _take_off(self, resumed: int) -> None:
        """`resumed`: so many steps count. Hosts tell theirs once a second, so that some may have come meanwhile."""
        fault, self._fault = self._fault, None
        if fault is None or fault.step is None:
            return
        account = self.account
        again = fault.since + (fault.step - resumed) * fault.pace
        again = min(max(0.0, again), account.productive)
        self.account = structs.replace(
            account, productive=account.productive - again, repeated=account.repeated + again
        )


def _with(account: Goodput, seconds: float, machine: JobMachine) -> Goodput:
    state = machine.round.state
    if machine.stopped is not None or state.generation == 0:
        return account
    if machine.round.in_setup:
        return structs.replace(account, setup=account.setup + seconds)
    if machine.round.trains:
        missing = seconds * len(state.absent) / machine.policy.world_size
        return structs.replace(
            account, productive=account.productive + seconds - missing, degraded=account.degraded + missing
        )
    cause = _first(state.reason).code
    recovering = {**account.recovering, cause: account.recovering.get(cause, 0.0) + seconds}
    return structs.replace(account, recovering=recovering)


def _first(reason: Reason) -> Reason:
    """What it began with: a reason may name another one as its cause."""
    while isinstance(cause := reason.get("cause"), Reason):
        reason = cause
    return reason
