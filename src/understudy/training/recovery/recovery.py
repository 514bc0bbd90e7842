"""From an abandoned generation to a resumed one, in the main thread of one member.

    contact is lost, or the control thread was told ─▶ report ─▶ plan ─▶ go back? ─▶ regroup ─▶ transfer ─▶ resumed

The pure rule (`protocol.commit`) says what becomes of the step; the parts of this folder, `groups` and `state` do it.
Everything here may be interrupted by the next fault and is then done again in the next generation.
"""

import time
from collections.abc import Callable

from understudy.detection.progress import Place
from understudy.errors import StepAbandoned, UnderstudyError, UnfitError
from understudy.foundation.ids import Generation, Rank
from understudy.ledger.records import TransferRecord
from understudy.protocol import events as ev
from understudy.protocol.commands import ResumeAt
from understudy.protocol.positions import Position
from understudy.protocol.rungs import Rung
from understudy.training.contact import Contact
from understudy.training.control import ControlLine
from understudy.training.recovery.borrowed import Borrowed
from understudy.training.recovery.probation import Probation
from understudy.training.recovery.regrouping import Regrouping
from understudy.training.recovery.state_transfer import StateTransfer
from understudy.training.recovery.tail import TailResults
from understudy.training.replicas import Replicas
from understudy.training.running_ahead import RunsAhead
from understudy.training.small_state import SmallState
from understudy.training.snapshots.restore_points import RestorePoints
from understudy.training.status import MemberStatus
from understudy.wire import messages

_FAULTS = (RuntimeError, OSError, UnderstudyError, StepAbandoned)
_ABANDONED = "a new generation was opened"


class Recovery:
    """Of one member."""

    def __init__(
        self,
        *,
        rank: Rank,
        control: ControlLine,
        status: MemberStatus,
        contact: Contact,
        regrouping: Regrouping,
        transfer: StateTransfer,
        tail: TailResults,
        borrowed: Borrowed,
        small: SmallState,
        restore_points: RestorePoints,
        replicas: Replicas,
        probation: Probation,
        ahead: RunsAhead,
    ) -> None:
        self._rank, self._control, self._status, self._contact = rank, control, status, contact
        self._regrouping, self._transfer, self._tail, self._borrowed = regrouping, transfer, tail, borrowed
        self._restore_points, self._replicas, self._probation = restore_points, replicas, probation
        self._small, self._ahead = small, ahead
        self._is_unfit = False

    # -- the report ----------------------------------------------------------------------------------------------------

    def answer_for_main(self, generation: Generation) -> ev.PositionReported | None:
        """Called by the control thread. Before its first step a founding member cannot be saved, and its main thread
        need not be asked. Between two steps what it holds is certain, however long the script evaluates or saves
        there."""
        status = self._status
        if not status.in_steps and not status.joiner:
            nothing_yet = Position(holds=None, established=False)
            return ev.PositionReported(
                at=ev.UNTIMED, member=self._control.member, generation=generation, position=nothing_yet
            )
        if not status.in_steps or not status.between_steps or self._ahead.unread:
            return None
        return ev.PositionReported(
            at=ev.UNTIMED,
            member=self._control.member,
            generation=generation,
            position=Position(holds=status.holds, established=status.established),
            provisional=True,
            twin_key=self._replicas.twin_key,
            holdings=self._replicas.holdings_to_tell(),
        )

    def _position(self) -> Position:
        status, tail = self._status, self._tail
        return Position(
            holds=status.holds,
            established=status.established,
            tail=0 if tail.ahead else tail.done,
            in_tail=tail.comes_next,
            has_tails=tail.expected,
        )

    def await_verdict(self, position: Position) -> ResumeAt:
        """Report where we stand and wait for the plan, through as many generations as it takes."""
        self._status.between_steps = False
        self._status.show(Place.RECOVERING)
        while True:
            self._contact.enter_newest_generation()
            self._status.phase("stop")
            self._control.send(
                ev.PositionReported(
                    at=ev.UNTIMED,
                    member=self._control.member,
                    generation=self._status.generation,
                    position=self._restore_points.added_to(position),
                    twin_key=self._replicas.twin_key,
                    holdings=self._replicas.holdings_to_tell(),
                )
            )
            self._transfer.get_ready(position)
            plan = self._control.await_plan(self._status.generation, self._restore_points.durable)
            if plan is not None:
                return plan

    def await_first_plan(self) -> ResumeAt:
        """A rehearsed joiner waits for groups and state."""
        assert self._replicas.twin_key is not None
        self._control.send(
            ev.MemberPrepared(
                at=ev.UNTIMED,
                member=self._control.member,
                generation=self._status.generation,
                twin_key=self._replicas.twin_key,
                holdings=tuple(self._replicas.holdings.values()),
                saved=self._restore_points.saved(),
                keeps=self._restore_points.keeps_for_others(),
            )
        )
        plan = self._control.await_plan(self._status.generation, self._restore_points.durable)
        return plan if plan is not None else self.await_verdict(self._position())

    # -- the plan ------------------------------------------------------------------------------------------------------

    def recover(self, before_plan: Callable[[], None] = lambda: None) -> None:
        """From an abandoned generation to a resumed one. `before_plan` runs once the verdict is known."""
        if self._ahead.unread:
            self._contact.come_to_rest()  # only then is it certain what this rank holds
            self._ahead.at_rest()
        plan = self.await_verdict(self._position())
        before_plan()
        self.carry_out(plan)

    def know_what_is_held(self) -> None:
        """The loop ends, or this rank leaves it for a while: no step may be undecided then."""
        try:
            self._ahead.know()
        except StepAbandoned as why:
            self._contact.await_word(str(why))
            self.recover()

    def come_back_to_loop(self) -> None:
        """The script is done with what comes after a step."""
        if not self._borrowed.changed:
            self._borrowed.forget()
            return
        what = f"rank {self._rank} took its state while others were between two steps, and its script has changed it"
        if self._borrowed.alone:
            self._borrowed.forget()
            self._control.note(
                f"{what}; the rank that gave it has been replaced as well: it may have been changed twice"
            )
            return
        self._status.holds = None
        self._transfer.forget_prepared()
        self._contact.await_word(f"{what}: it takes the others' again")
        self.recover()

    def carry_out(self, plan: ResumeAt) -> None:
        """Regroup, give or take state, resume. A fault meanwhile: once more in the next generation."""
        pause = 0.0  # trouble that comes again at once gets time to pass
        while True:
            trouble = self._try_to_carry_out(plan)
            if trouble is None:
                return
            if not self._status.abandoned:
                time.sleep(pause)
                pause = min(2.0, 2 * pause + 0.05)
                self._control.send(
                    ev.RecoveryFailed(
                        at=ev.UNTIMED,
                        member=self._control.member,
                        generation=self._status.generation,
                        why=trouble,
                        unfit=self._is_unfit,
                    )
                )
                self._contact.await_next_generation()
            plan = self.await_verdict(self._position())

    def _try_to_carry_out(self, plan: ResumeAt) -> str | None:
        if self._control.member in plan.leavers:
            return self._try_to_hand_over(plan)
        if plan.rung is Rung.RESTART:
            return self._save_and_wait(plan)
        if self._control.at_boundary:
            self._regrouping.drop_connections()
        timings: dict[str, float] = {}
        try:
            self._replicas.compare_with_predecessor()
            self._go_back_if_wanted(plan)
            with _timed(timings, "regroup"):
                self._regrouping.run(plan)
            with _timed(timings, "transfer"):
                received = self._exchange_state(plan)
        except UnfitError as error:
            self._is_unfit = True
            return str(error)
        except _FAULTS as error:
            return self._trouble(error)
        return self._resume(plan, timings, received)

    def _trouble(self, error: BaseException) -> str:
        self._contact.look_at(error)
        return f"{type(error).__name__}: {error}"

    def _go_back_if_wanted(self, plan: ResumeAt) -> None:
        if self._restore_points.replaces_state(plan):
            self._transfer.forget_prepared()
            self._restore_points.go_back(plan)
        self._restore_points.forget_after(plan)

    def _exchange_state(self, plan: ResumeAt) -> TransferRecord | None:
        self._status.phase("transfer")
        received, takes = self._transfer.run(plan), plan.receives(self._rank)
        self._tail.exchange(plan.tail, self._transfer.channel, self._rank, received=takes)
        begins = takes and plan.tail is not None and self._tail.ahead
        knows_small = begins and self._small.begin_again(plan.step)
        begun = plan.tail is not None and plan.tail.begun
        self._borrowed.transferred(dict(plan.donors), between_steps=begun, knows_small=knows_small)
        self._status.trained, self._status.in_tail = True, plan.tail is not None
        return received

    def _resume(self, plan: ResumeAt, timings: dict[str, float], received: TransferRecord | None) -> str | None:
        self._transfer.forget_prepared()
        self._probation.begin(plan)
        self._restore_points.resumed()
        finite = self._probation.resumes_finite(plan)
        self._status.phase("resume")
        if self._status.abandoned:
            return _ABANDONED
        self._tell_resumed(timings, received, finite=finite)
        self._regrouping.forget_former()
        return None

    def _tell_resumed(self, timings: dict[str, float], received: TransferRecord | None, *, finite: bool) -> None:
        member, generation = self._control.member, self._status.generation
        self._control.send(messages.Measured(generation=generation, timings=timings, transfer=received))
        self._control.send(ev.MemberResumed(at=ev.UNTIMED, member=member, generation=generation, finite=finite))

    def _save_and_wait(self, plan: ResumeAt) -> str:
        """All processes begin anew."""
        try:
            if self._status.holds == plan.step:
                self._restore_points.save_for_restart()
        except (RuntimeError, OSError, UnderstudyError) as error:
            return self._trouble(error)
        self._tell_resumed({}, None, finite=True)
        self._contact.await_next_generation()
        return _ABANDONED

    def _try_to_hand_over(self, plan: ResumeAt) -> str | None:
        """Another member has this rank now, and takes our state. Then nothing is left to do but to be ended."""
        try:
            self._status.phase("hand over")
            self._transfer.hand_over(plan.step)
        except _FAULTS as error:
            return self._trouble(error)
        self._contact.await_next_generation()
        return _ABANDONED


class _timed:
    """Adds the seconds spent inside to `timings[name]`."""

    def __init__(self, timings: dict[str, float], name: str) -> None:
        self._timings, self._name = timings, name

    def __enter__(self) -> None:
        self._start = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._timings[self._name] = time.monotonic() - self._start
