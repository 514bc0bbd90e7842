"""One attempt at one step: the body of `with step:`, its fence and its commit.

    computing ──optimizer's pre-hook──▶ arrived ──all have arrived──▶ passed ──all optimizers stepped──▶ applied

The fence is the optimizer's own step pre-hook. Where all ranks are twins nothing is waited for there. Arriving counts
only while the generation is whole: a rank that has heard of an abandonment, or sees a broken connection, turns back.
That is also what makes a body that swallows exceptions harmless.

Where ranks have something that no twin has, a step must not be committed without a rank that never came to the fence:
its replacement could not go on. There the ranks meet twice. Behind the first meeting each rank knows that all have
kept theirs, and only that counts as having arrived; behind the second one state changes.

A body that needs the others after an optimizer has stepped (a GAN, a closure, see `step_inspector`) has its fence at
its end, with all optimizers applied; until it has passed that, what they did can be taken back (`state.undo`):

    computing and optimizing ──end of the body──▶ arrived ──all have arrived──▶ applied

Where a device decides (`running_ahead`), passing means that its decision is queued; what became of it shows later.
"""

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch

from understudy.detection.progress import Place
from understudy.errors import DeviceLost, StepAbandoned, UsageError
from understudy.foundation.ids import StepNumber
from understudy.groups.fence import BEFORE_CHANGE, KEPT
from understudy.ledger.records import Sharing
from understudy.protocol.commands import ResumeAt
from understudy.protocol.commit import Action, action_for
from understudy.protocol.positions import Position
from understudy.training.member import Member
from understudy.training.recovery.probation import Losses
from understudy.training.step_inspector import refuse_leftover_gradients


class Step:
    """What the loop yields.

    - `number`: of the step, counted from 0.
    - `attempt`: how often its body has run before.
    - `committed`: true after the `with` block of an attempt that counted.
    - `inherited`: true after the `with` block if the step counts, but came with the state of another rank: this process
      has not computed it, so what its body has left behind (a loss) is of a rehearsal, or missing.
    - `rehearsing`: true while a joiner runs the body in its sandbox.
    - `anywhere`: true for a rehearsal, which belongs to no epoch.
    - `partial`: true after the `with` block if the body ran on a part of the step only, because ranks are absent.
    - `comes_again`: true after the `with` block of an attempt that did not count.
    """

    def __init__(self, number: int, attempt: int, prepare: Callable[[int], None], fetch: Callable[[int], Any]) -> None:
        self.number = number
        self.attempt = attempt
        self.committed = False
        self.inherited = False
        self.rehearsing = False
        self.anywhere = False
        self.partial = False
        self.entered = False
        self.fetched = False
        self._prepare, self._fetch = prepare, fetch
        self._left = False

    @property
    def comes_again(self) -> bool:
        return self._left and not self.committed

    def batch(self) -> Any:
        """This rank's batch of this step; the same in every attempt."""
        self.fetched = True
        return self._fetch(self.number)

    def batches(self) -> Iterator[Any]:
        """This rank's batches of this step, if `protect(batches_per_step=...)` says that there are several."""
        return iter(self.batch())

    def __enter__(self) -> "Step":
        self.entered = True
        self._prepare(self.number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self.committed = error is None
        return None


class RehearsalStep(Step):
    """A joiner's first run of the body, in a sandbox. It warms everything up; its result is overwritten."""

    def __init__(self, member: Member, prepare: Callable[[int], None], fetch: Callable[[int], Any]) -> None:
        super().__init__(0, 0, prepare, fetch)
        self.rehearsing = self.anywhere = True
        self.settled = False  # if not, there must be another rehearsal
        self._member = member

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._member.body.end()
        if error is not None:
            self._member.errors.report(error, None)
        else:
            self.settled = self._member.body.rehearsed(self.fetched)
        return None

    def __enter__(self) -> "Step":
        self._member.body.rehearse()
        return super().__enter__()


class TailStep(Step):
    """A joiner whose predecessor was lost between two steps, while others communicate there. They need it in the code
    that follows a step: so it rehearses once more, gets the state after that, and goes on there."""

    def __init__(
        self, member: Member, plan: ResumeAt, prepare: Callable[[int], None], fetch: Callable[[int], Any]
    ) -> None:
        super().__init__(plan.step - 1, 0, prepare, fetch)
        self.rehearsing = True
        self._member, self._plan = member, plan

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        member = self._member
        self._left = True
        if error is not None:
            member.errors.report(error, None)
            return None
        member.body.protected.forget_gradients()
        member.status.in_steps = True
        with member.tail.is_ahead():
            member.recovery.carry_out(self._plan)
        self.rehearsing = False
        self.committed = self.inherited = member.status.in_tail and member.status.holds == self.number + 1
        if self.committed:
            member.status.go_on_between_steps()
        return None


class ProtectedStep(Step):
    """An attempt that survives the loss of other ranks."""

    looks_at_loss = True

    def __init__(
        self,
        member: Member,
        number: int,
        attempt: int,
        prepare: Callable[[int], None],
        fetch: Callable[[int], Any],
    ) -> None:
        super().__init__(number, attempt, prepare, fetch)
        self._member = member
        self._began = 0.0
        self._arrived = self._passed = False
        self._attempted = False  # an optimizer has stepped, or would have if its scaler had let it
        self._stepped: set[int] = set()
        self._undo = member.body.late_fence.undo
        self._ended = False  # the body has run to its end
        self._plan: ResumeAt | None = None
        self._losses: Losses | None = None  # only on probation

    def __enter__(self) -> "Step":
        member = self._member
        member.status.between_steps = False
        member.tail.begin_step()
        member.status.show(Place.IN_STEP)
        member.body.watch()
        member.replicas.watch()
        self._began = time.monotonic()
        member.peer_memory.begin_due()
        member.body.begin()
        member.ahead.begin_step(self.number)
        super().__enter__()
        member.body.begin_rank_local(self.number)
        if self._undo is not None:
            self._undo.begin()
        if self.looks_at_loss and member.status.established and member.probation.covers(self.number):
            self._losses = Losses()
            self._losses.begin()
        return self

    # -- the fence -----------------------------------------------------------------------------------------------------

    def before_optimizer(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Called right before state changes: this is the fence, unless the change can be taken back. `optimizer` is the
        one that is about to step, None for a scaler."""
        self._attempted = True
        if self._undo is None:
            self._pass_fence()
            if optimizer is not None:
                self._member.ahead.arm(optimizer)
        elif self._member.contact.lost():
            raise StepAbandoned(f"step {self.number} is abandoned before an optimizer of it")
        else:
            self._member.peer_memory.finish()  # it reads what is about to change
            if optimizer is not None:
                self._undo.keep(optimizer)

    def _pass_fence(self) -> None:
        if self._passed:
            return
        member, seconds = self._member, time.monotonic() - self._began
        member.peer_memory.finish()
        if member.contact.lost():
            raise StepAbandoned(f"step {self.number} is abandoned at its fence")
        member.status.show_compute(self.number, seconds - member.body.engines.waits.seconds)
        member.body.arrive(self.number)
        if member.ahead.is_on:
            member.ahead.pass_fence(self.number)
        elif member.replicas.fenced:
            try:
                self._meet_all()
            except RuntimeError:
                self._wait_at_fence()
        self._passed = True

    def _meet_all(self) -> None:
        member, step = self._member, StepNumber(self.number)
        fence = member.fences.of(member.status.generation)
        self._arrived = not member.replicas.keep_own
        if not self._arrived:
            fence.meet(step, member.contact.lost, KEPT)
            self._arrived = True
        fence.meet(step, member.contact.lost, BEFORE_CHANGE)

    def _wait_at_fence(self) -> None:
        """A rank was lost while we waited. A commit lets the optimizer go on; otherwise the body unwinds."""
        member = self._member
        member.contact.await_word(f"at the fence of step {self.number}")
        position = Position(
            holds=StepNumber(self.number),
            arrived=self._arrived and not member.asynchronous,
            arrived_asynchronously=self._arrived and member.asynchronous,
            has_tails=member.tail.expected,
        )
        self._plan = member.recovery.await_verdict(position)
        if action_for(position, self._plan.step) is not Action.APPLY:
            raise StepAbandoned(f"step {self.number} will run again in generation {self._plan.generation}")

    def after_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._stepped.add(id(optimizer))
        self._member.ahead.disarm()

    # -- the end of the body -------------------------------------------------------------------------------------------

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        member = self._member
        self._left = True
        if self._losses is not None:
            self._losses.end()
        member.ahead.disarm()
        member.body.end()
        if error is None:
            try:
                self._complete()
                return False
            except StepAbandoned as late:
                error = late
            except UsageError as wrong:
                member.errors.report(wrong, self.number)
                raise
            except (RuntimeError, DeviceLost) as late:
                member.contact.look_at(late)
                if not member.contact.lost():
                    raise
                error = late
        member.contact.look_at(error)
        explained = isinstance(error, StepAbandoned) or (isinstance(error, Exception) and member.contact.lost())
        if not explained:
            member.errors.report(error, self.number)
            return False
        if self._plan is None:
            member.contact.await_word(f"in step {self.number}: {type(error).__name__}: {error}")
        self._recover()
        return True

    def _complete(self) -> None:
        """The body has run to its end: commit, and then carry out what the fence left pending."""
        member = self._member
        if not self._attempted and member.body.inspector.computed_gradients:
            refuse_leftover_gradients(member.body.protected, self.number)
        self._pass_fence()  # a body without an optimizer step still commits in step with the others
        self._ended = True
        if not member.status.established or member.replicas.fenced is None:
            if member.body.settle(self.fetched) and member.replicas.all_have_learnt():
                member.replicas.establish()
                member.body.late_fence.agree()
                member.ahead.agree()
        else:
            member.body.engines.settle()  # an engine may have been used for the first time
        member.body.late_fence.look_at(self.number)
        self._commit()
        if self._plan is not None:
            with member.tail.is_ahead():
                member.recovery.carry_out(self._plan)
            member.status.go_on_between_steps()

    def _commit(self) -> None:
        if self.committed:
            return
        member = self._member
        if member.ahead.unread and self._state_is_read():
            member.ahead.know()
        self.committed = True
        member.body.committed()
        member.status.holds = StepNumber(self.number + 1)
        bad_loss = None if self._losses is None else self._losses.trouble(stepped=bool(self._stepped))
        member.probation.after_commit(self.attempt, self.shared(), bad_loss)
        member.checkpoints.after_commit()
        member.tail.begin()
        if member.tail.expected and not member.replicas.in_windows:
            member.body.small.keep(self.number + 1)
        member.status.go_on_between_steps()

    def _state_is_read(self) -> bool:
        """Is something done with what this step makes of the state, before the next one is at its fence?"""
        member = self._member
        return (
            member.tail.expected
            or member.probation.reads(self.number)
            or member.checkpoints.due(self.number + 1)
            or self._plan is not None
        )

    def shared(self) -> Sharing | None:
        """What this rank worked on besides its own batch, if ranks are absent."""
        return None

    def _all_applied(self) -> bool:
        """All optimizers have stepped, and nothing else that is protected could still have changed in this body."""
        protected = self._member.body.protected
        if any(id(optimizer) not in self._stepped for optimizer in protected.optimizers.values()):
            return False
        if (others := protected.changed_beside_optimizers()) and not self._ended:
            self._member.control.note(
                f"step {self.number} was cut short after its optimizer, by communication in the body. Whether "
                f"{', '.join(others)} had changed cannot be known, so this rank's state counts as lost. Communicate "
                "before optimizer.step() or after the `with` block"
            )
            return False
        return True

    def _recover(self) -> None:
        """The body was cut short by a fault elsewhere."""
        member = self._member
        member.contact.come_to_rest()  # only now is it certain what this rank holds, and may it be put back
        before_plan: Callable[[], None] = lambda: None  # noqa: E731
        if member.ahead.at_rest() is not None:
            self._passed = self.committed = False  # this step was not applied here, or an earlier one was not
        if self._passed and not self.committed:
            if self._ended or self._all_applied():
                member.status.holds = StepNumber(self.number + 1)  # only the rest of the body is missing
                before_plan = self._commit
            else:
                member.status.holds = None  # torn
        elif not self.committed:
            if self._undo is not None:
                self._undo.put_back()
            member.body.put_back_buffers()
        with member.tail.is_ahead(self.committed or member.status.holds == self.number + 1):
            if self._plan is not None and not member.status.abandoned:
                before_plan()
                member.recovery.carry_out(self._plan)
            else:
                member.recovery.recover(before_plan)
        if not self.committed:
            member.body.protected.forget_gradients()
            # The others are in the code after this step and wait there for this rank, which has got the step from them.
            self.committed = self.inherited = member.status.in_tail and member.status.holds == self.number + 1
        if self.committed:
            member.status.go_on_between_steps()
