"""Windows: steps of a loop that is not ours, made of calls that run again in place after a fault.

    part ──▶ part ──▶ ... ──▶ the part with the optimizer (its fence) ──▶ ... ──▶ commit
      ▲        │
      └─fault──┘   recover, drop gradients, run the earlier parts again in order, then this one

A window is what the protocol calls a step, and is built on `ProtectedStep`; but no body is unwound: the frames above a
part never notice that a rank was lost. Values that they took from earlier parts stay valid, because a part computes the
same when it runs again: its random numbers follow from (seed, window, share, part), what is carried (`loop_state`) is
put back to what it was when the part was entered, and switches around it, such as DDP's `no_sync`, are set as then.

Ranks always meet at the fence, also where all are twins: else a rank could get the newer state in the middle of a
window whose rest its loop would still run.

A member that joins rehearses, takes the state and begins the window with what its predecessor carried. Where that
window counts already, it goes through it without computing anything: each part returns what it has returned there.
"""

import atexit
import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from understudy.errors import StepAbandoned, TransferError, UsageError
from understudy.state.encoding import unpack
from understudy.training.audit import Unprotected
from understudy.training.loop_state import LoopState, Record, packed
from understudy.training.member import Member
from understudy.training.positions import Positions
from understudy.training.rewinding import Rewinding
from understudy.training.steps import RehearsalStep, Step
from understudy.training.warmup import allocate_normally
from understudy.training.window_parts import NOTHING, Part, Prepare, WindowStep, content_of, no_batch

SeedPart = Callable[[int, int], None]
"""Seeds the random streams for a part of a window."""


class Window:
    """`job.window`: of one member, or of a process without protection (`member` is None)."""

    def __init__(
        self, member: Member | None, prepare: Prepare, seed: SeedPart, use: Callable[[Step | None], None]
    ) -> None:
        """`use`: tells the job which attempt its hooks are for."""
        self._member, self._prepare, self._seed, self._use = member, prepare, seed, use
        self.state = LoopState() if member is None else member.loop
        self._loaders: list[Rewinding] = []
        self._number = 0  # windows that this rank's loop has behind it
        self._step: WindowStep | None = None
        self._parts: list[Part] = []
        self._is_open = self._inside = self._entered = self._rehearsing = self._finished = False
        self._counts = False  # it is part of the state already, and the rest of it is dropped
        self._told: Record | None = None  # of a window that counts already, which a joiner goes through
        self._begun: Record | None = None  # of the window that a joiner begins

    def add_loader(self, loader: Rewinding, positions: Positions | None) -> None:
        self.state.carry(f"loader {len(self._loaders)}", loader)
        if positions is not None:
            self.state.carry(f"position of loader {len(self._loaders)}", positions)
        self._loaders.append(loader)

    # -- for the ledger -----------------------------------------------------------------------------------------------

    def sample_ids(self, step: int, _rank: int, _world_size: int) -> Sequence[int]:
        """Digests of what the parts of the window were given. Nothing is known of past ones."""
        return [digest for part in self._parts for digest in part.content] if step == self._number else []

    def batch(self, step: int, _rank: int, _world_size: int) -> Any:
        return no_batch(step)

    # -- what a loop calls --------------------------------------------------------------------------------------------

    def part(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` as a part of the window: call the result as you would call it."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return self._run(functools.partial(function, *args, **kwargs))

        return run

    def step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A window of one part: `part`, and `commit` behind it."""
        part = self.part(function)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            result = part(*args, **kwargs)
            self.commit()
            return result

        return run

    def fence(self) -> None:
        """State is about to change. Optimizers of torch that were given to `protect` say so themselves."""
        self.part(lambda: None if self._step is None else self._step.before_optimizer())()

    def applied(self) -> None:
        """All that the window changes is changed: if what follows in it is cut short, that is dropped."""
        self.part(lambda: None if self._step is None else self._step.applied())()

    def commit(self) -> None:
        """The window ends, on all ranks or on none."""
        if self._is_alone():
            return
        if self._told is not None:
            self._end_told(self._told)
        elif self._member is not None:
            self._commit(self._member)
        self._number += 1
        self._is_open, self._parts = False, []
        for loader in self._loaders:
            loader.committed()

    def finish(self) -> None:
        """There are no more windows."""
        member = self._member
        if self._finished or member is None:
            return
        self._finished = True
        self._leave()
        if member.errors.failed:
            return
        while not member.shutdown.finish():
            self._require(member)

    @property
    def is_real(self) -> bool:
        """False in a rehearsal, and in a window that a member which joins only goes through: nothing of it counts."""
        return self._entered and not self._rehearsing and self._told is None

    @property
    def runs_a_part(self) -> bool:
        """What is called now would be called again after a fault."""
        return self._inside or self._rehearsing

    def _end_process(self) -> None:
        """The script has come to its end, and its loop had none."""
        if self._member is not None and not self._finished and not self._member.errors.failed:
            self._finished = True
            self._member.shutdown.finish_early()

    # -- entering -----------------------------------------------------------------------------------------------------

    def enter(self, rehearse: Callable[[], Any]) -> int:
        """Take part. `rehearse`: does once what a window does, without its commit; only a member that joins calls it.
        How many windows this rank's loop has behind it: those it must skip."""
        if self._entered:
            raise UsageError("job.enter() was called already: a process has one loop")
        self._entered = True
        member = self._member
        if member is None:
            return 0
        protected = member.body.protected
        self.state.carry("engines", member.body.engines)
        if self.state.elsewhere:
            protected.carried["loop"] = self.state
        if protected.save is None:
            register_optimizer_step_pre_hook(Unprotected(protected).refuse)
        if member.status.joiner:
            self._join(member, rehearse)
        else:
            member.checkpoints.resume()
            if member.status.holds:
                raise UsageError(
                    "a loop of windows cannot begin with a durable checkpoint of Understudy's, because that does not "
                    "say where the loop stands. Leave --checkpoint-dir out, and let the trainer write its own"
                )
            member.status.in_steps = True
        atexit.register(self._end_process)
        return self._number

    def _join(self, member: Member, rehearse: Callable[[], Any]) -> None:
        status, before = member.status, self.state.take()
        status.phase("rehearse")
        member.body.engines.prepare_sandbox(member.world)
        settled = False
        while not settled:
            step = RehearsalStep(member, self._prepare, no_batch)
            self._use(step)
            self._rehearsing = True
            try:
                with step:
                    rehearse()
            finally:
                self._rehearsing = False
            settled = step.settled
        self._use(None)
        member.body.protected.forget_gradients()
        self.state.put(before)
        plan = member.recovery.await_first_plan()
        status.in_steps = True
        with member.tail.is_ahead(plan.tail is not None or self.state.find(plan.step) is None):
            member.recovery.carry_out(plan)
        self._find_place(member)
        allocate_normally()

    def _find_place(self, member: Member) -> None:
        """At the begin of the next window; or behind the fence of the one before, if the rank was still there."""
        holds = member.status.holds or 0
        begun = None if member.status.in_tail else self.state.find(holds)
        record = begun or self.state.find(holds - 1)
        if record is None:
            raise TransferError(f"what rank {member.world.rank} carried in its loop before step {holds} was not kept")
        self._number = record.window
        member.body.remember()  # where the window counts, what the rest of it changes has been received already
        for loader in self._loaders:
            loader.forget()
        self.state.put(record.begun)
        for loader in self._loaders:
            loader.go_to_last_commit()
        if begun is not None:
            self._begun = begun
            member.body.forget()
            return
        self._told = self.state.record = record
        if member.status.in_tail:
            self.state.forget_sections_from(member.tail.foretold)
        else:
            member.tail.foretell([(mark.name, mark.value) for mark in record.sections])
        if record.small:
            member.body.small.put(record.small)  # but it must read what was there
        member.status.go_on_between_steps()

    # -- parts --------------------------------------------------------------------------------------------------------

    def _is_alone(self) -> bool:
        """A call that is not a part of a window: in a rehearsal, in another part, in a section."""
        return self._rehearsing or self._inside or (self._member is not None and self._member.status.in_section)

    def _run(self, call: "functools.partial[Any]") -> Any:
        if self._is_alone():
            return call()
        if self._told is not None:
            return self._tell(self._told)
        if self._counts:
            return None
        member = self._member
        if member is None:
            return self._run_plain(call)
        taken = self.state.take() if self._is_open else self._open(member)
        part = Part(call, taken, member.body.engines.switches())
        self._parts.append(part)
        return self._until_done(member, lambda again: self._perform(member, len(self._parts) - 1, again))

    def _run_plain(self, call: "functools.partial[Any]") -> Any:
        self._parts.append(NOTHING)
        self._seed(self._number, len(self._parts) - 1)
        self._inside = True
        try:
            return call()
        finally:
            self._inside = False

    def _until_done(self, member: Member, last: Callable[[bool], Any]) -> Any:
        """Through as many faults as it takes. None: the window counts, and the rest of it is dropped."""
        again = False
        while not self._counts:
            try:
                if again:
                    for place in range(sum(part.is_over for part in self._parts)):
                        self._perform(member, place, again)
                return last(again)
            except StopIteration:  # a loader that is read in a part has come to its end
                self._parts = [part for part in self._parts if part.is_over]
                raise
            except (Exception, StepAbandoned) as error:
                self._recover(member, error)
            again = True
        return None

    def _perform(self, member: Member, place: int, again: bool) -> Any:
        part, step = self._parts[place], self._step
        assert step is not None
        if again:
            self.state.put(part.taken)
            for owner, name, value in part.switches:
                setattr(owner, name, value)
            if content_of(part.call) != part.content:
                raise UsageError(
                    f"part {place} of step {self._number} has changed what it was given in place, and cannot run "
                    "again. Let it leave its arguments as they are: x = x / 255 instead of x.div_(255)"
                )
        if member.status.abandoned:
            raise StepAbandoned(f"the generation was abandoned before part {place} of step {self._number}")
        self._seed(self._number, place)
        self._inside = step.inside = True
        try:
            result = part.call()
        finally:
            self._inside = step.inside = False
        if not part.is_over:
            part.is_over, part.result = True, packed(result)
        return result

    # -- a window begins and ends -------------------------------------------------------------------------------------

    def _open(self, member: Member) -> bytes:
        """Returns what is carried at its begin."""
        if not self._entered:
            raise UsageError("call job.enter() before the loop: a replacement rehearses and takes its place there")
        if self._begun is not None:
            self.state.put(self._begun.begun)  # the loop has come to its first part
            self._begun = None
        begun = self.state.take()
        self.state.begin(self._number, begun)
        self._is_open = True
        self._begin_attempt(member, 0)
        return begun

    def _begin_attempt(self, member: Member, attempt: int) -> None:
        while True:
            member.recovery.come_back_to_loop()
            if not member.status.abandoned and member.control.begin_step(self._number):
                break
            member.recovery.recover()
            self._require(member)
        self._require(member)
        self._step = WindowStep(member, self._number, attempt, self._prepare, self._arrive)
        self._use(self._step)
        self._step.__enter__()

    def _arrive(self) -> None:
        if self.state.record is not None and self._member is not None:
            self.state.record.fence = self.state.take()
            self.state.record.small = self._member.body.small.read()
            self._write()

    def _write(self) -> None:
        """At the fence, and at the commit: all that a replacement would have to know."""
        if self.state.record is not None:
            self.state.record.parts = [part.mark() for part in self._parts]
            self.state.write()

    def _commit(self, member: Member) -> None:
        if not self._is_open:
            self._open(member)
        self._until_done(member, lambda _again: self._complete())
        if self.state.record is not None:
            self.state.record.after = self.state.take()
            self._write()
        if self._counts:
            member.body.put_back()  # what the rest of the window has changed again
            member.body.forget()
        self._counts = False
        member.status.go_on_between_steps()

    def _complete(self) -> None:
        step = self._step
        assert step is not None
        if step.__exit__(None, None, None):
            raise _Unfinished
        self._leave()

    def _leave(self) -> None:
        self._use(None)
        self._step = None

    def _recover(self, member: Member, error: BaseException) -> None:
        """Raises the error if it is the script's own. Else the world has recovered: the window counts, or a new attempt
        at it has begun."""
        step = self._step
        assert step is not None
        if not isinstance(error, _Unfinished) and not step.__exit__(type(error), error, error.__traceback__):
            raise error
        if step.committed or member.status.holds == self._number + 1:
            self._counts = True
            self._leave()
            member.body.remember()
            if not step.torn:
                member.control.note(f"the rest of step {self._number} was cut short and is dropped: the step counts")
            return
        self._require(member)
        self._begin_attempt(member, step.attempt + 1)

    def _require(self, member: Member) -> None:
        if member.status.holds != self._number:
            error = UsageError(
                f"the world has gone back to the state before step {member.status.holds}, and a loop of windows cannot "
                f"go back: it stands before step {self._number}. Start the job again from the trainer's own checkpoint"
            )
            member.errors.report(error, None)
            raise error

    # -- a window that counts already, in a joiner --------------------------------------------------------------------

    def _tell(self, record: Record) -> Any:
        place = len(self._parts)
        self._parts.append(NOTHING)
        if place >= len(record.parts):
            return None
        mark = record.parts[place]
        is_fencing = record.after is None and place == len(record.parts) - 1
        self.state.put(record.fence if is_fencing and record.fence is not None else mark.state)
        return None if mark.value is None else unpack(mark.value)

    def _end_told(self, record: Record) -> None:
        member = self._member
        assert member is not None
        member.body.put_back()
        if record.after is not None:
            self.state.put(record.after)
        member.body.forget()
        self._told = None


class _Unfinished(Exception):
    """The end of a window was cut short, and the world has recovered from that."""
