"""One worker as the protocol sees it: where it stands, what it does when it hears something, what it says.

Knows its rank, its generation, its state and the meetings (collectives, barriers) it takes part in. Does not know time,
the network or faults: the world decides when a move happens, whether a message arrives, and which members die. Every
`move` takes the member from one place to the next; every `hear` obeys one command or ignores it as stale.

The simulation moves members in fine steps; the explorer joins moves between which nothing visible can happen.
"""

from copy import copy
from dataclasses import dataclass, replace

from understudy.foundation.ids import Generation, MemberId, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.commands import (
    AbandonGeneration,
    AskCheckpoints,
    AskStep,
    AssignRank,
    Command,
    KeepAgreed,
    ReleaseMembers,
    ResumeAt,
)
from understudy.protocol.commit import Action, action_for
from understudy.protocol.liveness import Condition
from understudy.protocol.loop import Next, what_next
from understudy.protocol.positions import Position
from understudy.protocol.rungs import Rung
from understudy_testkit.simulator.phases import INTERRUPTIBLE, MEETING_PHASES, Meeting, MemberPhase, Surroundings
from understudy_testkit.simulator.script import Script, State
from understudy_testkit.simulator.watching import after_commit

_MOST_IN_TAIL = 1000


@dataclass(slots=True)
class SimulatedMember:
    id: MemberId
    script: Script
    phase: MemberPhase = MemberPhase.STARTING
    rank: Rank | None = None
    assigned_in: Generation = Generation(0)
    heard: Generation = Generation(0)  # the newest generation it knows of
    acting: Generation = Generation(0)  # the generation whose groups it belongs to
    state: State | None = None
    attempt: int = -1  # the step whose gradients it works on
    arrived: bool = False
    established: bool = False
    parked: bool = False
    resumed: bool = False  # it has resumed in `acting`
    receives: bool = False
    donors: tuple[Rank, ...] = ()
    from_copy: bool = False  # its donor keeps a copy of what it needs
    target: int = -1  # the step at which it resumes
    meeting: Meeting | None = None
    boundary: tuple[Generation, int] | None = None  # the generation to leave for, and before which step
    leaves: bool = False
    saves: bool = False  # all processes begin anew: it only saves what it holds
    corrupt: bool = False  # a bit of its state has flipped
    spoilt: bool = False  # its state is no longer made of numbers
    was_sound: bool = True  # when it resumed
    held: int | None = None  # the copy that stays while it is on probation
    watches_until: int = -1  # on probation: the last state at which it looks
    copies: tuple[State, ...] = ()  # of its state, whenever it was compared with its twins
    kept: int | None = None  # the one of them on which all agreed
    tail: int = 0  # collectives that it has completed since its last step
    in_tail: bool = False  # it was interrupted there
    resumes_in_tail: bool = False
    before_tail: bool = False  # it has committed a step, and its script has not gone on since
    poisoned: bool = False  # it can take part in no new world, and does not know it
    saving: State | None = None  # on its way to peer memory; its last step counts when it is there
    hung: bool = False
    halted: Condition | None = None  # how it hangs, or is held for a while: stopped, deaf or traced
    halted_since: float = 0.0
    halted_until: float = 0.0
    busy_since: float = 0.0
    busy_until: float = 0.0  # its main thread does something that takes long; it hears, but does not move
    sleeps: bool = False  # ... and nothing of it can be seen from outside
    forsaken: bool = False  # its host was given up; it is not listened to any more
    ticket: int = 0  # changes with every new place

    @property
    def alive(self) -> bool:
        return self.phase is not MemberPhase.ENDED

    def halted_between(self, since: float, until: float) -> float:
        """Seconds in which it was stopped, or held by a debugger, and could do nothing."""
        if self.halted is None or self.hung:
            return 0.0
        return max(0.0, min(until, self.halted_until) - max(since, self.halted_since))

    @property
    def holds(self) -> StepNumber | None:
        return None if self.state is None else StepNumber(len(self.state))

    def certainly_holds(self) -> StepNumber | None:
        """Whatever happens to others."""
        return self.holds

    @property
    def twin_key(self) -> str:
        assert self.rank is not None
        return self.script.twin_key(self.rank)

    @property
    def holdings(self) -> tuple[int, ...]:
        assert self.rank is not None
        return self.script.holdings(self.rank)

    def copy(self) -> "SimulatedMember":
        return copy(self)

    def enter(self, phase: MemberPhase, meeting: Meeting | None = None) -> None:
        self.phase, self.meeting = phase, meeting
        self.ticket += 1

    # -- hearing ------------------------------------------------------------------------------------------------------

    def hear(self, command: Command, world: Surroundings) -> None:
        match command:
            case AssignRank():
                self._on_assign(command, world)
            case AbandonGeneration(boundary=int()):
                self._on_boundary(command, world)
            case AbandonGeneration():
                self._on_abandon(command, world)
            case AskStep():
                self._on_ask_step(command, world)
            case AskCheckpoints():
                self._on_ask_checkpoints(command, world)
            case KeepAgreed():
                self._on_agreed(command, world)
            case ResumeAt():
                self._on_resume_at(command, world)
            case ReleaseMembers():
                if self.phase is MemberPhase.FINISHED and command.generation == self.heard:
                    self.enter(MemberPhase.LEAVING)
                else:
                    world.on_stale(self, command)

    def _on_assign(self, command: AssignRank, world: Surroundings) -> None:
        if self.rank is None and not (command.founding and command.generation < self.heard):
            self.rank, self.assigned_in = command.rank, command.generation
            self.heard = max(self.heard, command.generation)
            self.acting = command.generation
            self.enter(MemberPhase.SETUP if command.founding else MemberPhase.REHEARSING)
        elif self.rank is not None and not command.founding and self.phase is not MemberPhase.REHEARSING:
            self._say_prepared(world)

    def _on_abandon(self, command: AbandonGeneration, world: Surroundings) -> None:
        known = command.generation == self.heard and self.phase not in (MemberPhase.UNWOUND, MemberPhase.IDLE)
        if command.generation < self.heard or known:
            world.on_stale(self, command)
            return
        self.heard, self.boundary = command.generation, None
        if self.phase is MemberPhase.IDLE:
            self._report(world)  # it was never told its rank
        elif self.phase in INTERRUPTIBLE:
            self._unwind(world)

    def _on_boundary(self, command: AbandonGeneration, world: Surroundings) -> None:
        """Not at once, unless that step has begun."""
        assert command.boundary is not None
        begun = self.attempt >= command.boundary or self.phase in (
            MemberPhase.FINISHED,
            MemberPhase.UNWOUND,
            MemberPhase.GIVING,
        )
        if begun or command.generation <= self.heard:
            self._on_abandon(command, world)
        elif self.boundary is None or self.boundary[0] < command.generation:
            self.boundary = command.generation, command.boundary

    def _on_ask_step(self, command: AskStep, world: Surroundings) -> None:
        if command.generation != self.acting or self.heard > self.acting or self.holds is None:
            world.on_stale(self, command)
            return
        step = StepNumber(max(self.attempt, self.holds))
        world.send(self, ev.StepTold(at=world.now, member=self.id, generation=self.acting, step=step))

    def _on_ask_checkpoints(self, command: AskCheckpoints, world: Surroundings) -> None:
        """Files are looked at by the main thread, which waits for the verdict."""
        if command.generation != self.heard or self.phase is not MemberPhase.UNWOUND:
            world.on_stale(self, command)
            return
        steps = tuple(map(StepNumber, world.checkpoints()))
        world.send(self, ev.CheckpointsTold(at=world.now, member=self.id, generation=self.heard, steps=steps))

    def _on_agreed(self, command: KeepAgreed, world: Surroundings) -> None:
        """Not once a newer generation is known: what it has reported to that one must stay."""
        if command.generation != self.acting or self.heard > self.acting:
            world.on_stale(self, command)
        elif any(len(copy_) == command.step for copy_ in self.copies):
            self.kept = command.step
            self.copies = tuple(copy_ for copy_ in self.copies if len(copy_) >= command.step)

    def _on_resume_at(self, command: ResumeAt, world: Surroundings) -> None:
        if command.generation != self.heard or self.rank is None:
            world.on_stale(self, command)
        elif self.phase is MemberPhase.UNWOUND:
            self._obey_verdict(command, world)
        elif self.acting == command.generation and self.resumed:
            self._say_resumed(world)

    def _obey_verdict(self, command: ResumeAt, world: Surroundings) -> None:
        assert self.rank is not None
        donors = dict(command.donors)
        action = action_for(self.position(), command.step)
        if command.rewind or command.step != self.holds:
            self.in_tail = self.before_tail = False  # its script runs on to the next step, with void results
        if command.rewind:
            action = Action.RECEIVE if self.rank in donors else Action.HOLD
            self._go_back(command.step)
        elif command.rung is Rung.CHECKPOINT:
            action = Action.HOLD
            self.state, self.spoilt, self.corrupt = tuple(range(command.step)), False, False
        elif self._brings_back(command, action):
            action = Action.HOLD
            self.state = next(state for state in world.saved(self) if len(state) == command.step)
            self.spoilt = self.corrupt = False
        world.forget_after(self, command.step)
        self.acting, self.target, self.resumed = command.generation, command.step, False
        self.receives = action is Action.RECEIVE
        self.donors, self.from_copy = donors.get(self.rank, ()), self.rank in command.from_copies
        self.leaves = self.id in command.leavers
        self.resumes_in_tail = command.tail is not None
        if command.tail is not None:
            self.tail = command.tail.done
        self.saves = command.rung is Rung.RESTART
        self.watches_until = command.step + command.probation if command.probation else -1
        if not self.leaves and not self.saves:
            world.on_acting(self)
        if action is Action.APPLY:
            self.enter(MemberPhase.APPLYING_VERDICT)
        else:
            self._take_part(world)

    def _brings_back(self, command: ResumeAt, action: Action) -> bool:
        lacks_it = action is Action.RECEIVE or command.distrust
        return lacks_it and command.rung is Rung.PEER_MEMORY and self.rank not in dict(command.donors)

    def _go_back(self, step: int) -> None:
        self.copies = tuple(copy_ for copy_ in self.copies if len(copy_) <= step)
        if self.kept == step:
            self.state, self.corrupt, self.spoilt = self.copies[-1], False, False

    def _take_part(self, world: Surroundings) -> None:
        """In the world that is formed, or in nothing but handing over or saving."""
        if self.leaves:
            self.arrived = False
            self.enter(MemberPhase.GIVING)
        elif self.saves:
            self._save_for_restart(world)
        else:
            self._regroup(world)

    # -- moving -------------------------------------------------------------------------------------------------------

    def can_move(self, world: Surroundings) -> bool:
        if self.phase in MEETING_PHASES:
            assert self.meeting is not None
            return world.is_complete(self.meeting)
        if self.phase in (MemberPhase.AWAITING, MemberPhase.RECEIVING):
            return world.donor(self) is not None
        if self.phase is MemberPhase.IDLE:
            return not self.parked
        return self.phase not in (MemberPhase.UNWOUND, MemberPhase.GIVING, MemberPhase.ENDED)

    def move(self, world: Surroundings) -> None:
        """Come to the end of the present place. The world calls it only where `can_move`."""
        match self.phase:
            case MemberPhase.STARTING:
                self.enter(MemberPhase.IDLE)
                world.send(self, ev.MemberConnected(at=world.now, member=self.id))
            case MemberPhase.IDLE:
                self.parked = True
                world.send(self, ev.MemberParked(at=world.now, member=self.id))
            case MemberPhase.REHEARSING:
                self.established = True
                self.enter(MemberPhase.UNWOUND)
                self._say_prepared(world)
            case MemberPhase.FINISHED:
                self._ask_for_release(world)
            case MemberPhase.LEAVING:
                self.enter(MemberPhase.ENDED)
                world.on_exit(self)
            case MemberPhase.REGROUPING | MemberPhase.AWAITING | MemberPhase.RECEIVING | MemberPhase.APPLYING_VERDICT:
                self._move_in_recovery(world)
            case _:
                self._move_in_step(world)

    def _move_in_step(self, world: Surroundings) -> None:
        assert self.rank is not None
        match self.phase:
            case MemberPhase.SETUP:
                self.state, self.in_tail = (), False
                world.on_acting(self)
                self._begin_step(world)
            case MemberPhase.COMPUTING:
                if not self._unwind_if_abandoned(world):
                    self._meet(world, MemberPhase.COLLECTIVE)
            case MemberPhase.COLLECTIVE if self.script.waits_at_fence:
                self._finish_saving(world)
                self._meet(world, MemberPhase.FENCE)
                self.arrived = True
            case MemberPhase.COLLECTIVE | MemberPhase.FENCE:
                self.enter(MemberPhase.APPLYING)
            case MemberPhase.APPLYING:
                self._apply(world)
                if not self.established:
                    self._establish(world)
                else:
                    after_commit(self, world)
                    self._go_on(world)
            case MemberPhase.ESTABLISHING:
                self.established = True  # not earlier: a rank that is not here yet has left nothing to a replacement
                after_commit(self, world)
                event = ev.MemberEstablished(
                    at=world.now,
                    member=self.id,
                    generation=self.acting,
                    twin_key=self.twin_key,
                    holdings=self.holdings,
                    replica=self.script.replica(self.rank),
                )
                world.send(self, event)
                self._go_on(world)
            case MemberPhase.EVALUATING:
                self.tail += 1
                self._go_on_in_tail(world)
            case MemberPhase.BETWEEN:
                self._begin_step(world)

    def _move_in_recovery(self, world: Surroundings) -> None:
        match self.phase:
            case MemberPhase.APPLYING_VERDICT:
                self._apply(world)
                after_commit(self, world)
                self.tail, self.before_tail = 0, True
                if not self._unwind_if_abandoned(world):
                    self._take_part(world)
            case MemberPhase.REGROUPING if self.receives:
                self.enter(MemberPhase.AWAITING)
            case MemberPhase.AWAITING:
                self.state = None  # from here on it is torn until the transfer is whole
                self.enter(MemberPhase.RECEIVING)
            case MemberPhase.REGROUPING:
                self._resume(world)
            case MemberPhase.RECEIVING:
                donor = world.donor(self)
                assert donor is not None
                self.state, self.corrupt, self.spoilt = donor.state, donor.corrupt, donor.spoilt
                if self.from_copy:
                    self.state, self.corrupt, self.spoilt = world.copy_of(self, donor), False, False
                self._resume(world)

    # -- parts of moves -----------------------------------------------------------------------------------------------

    def _begin_step(self, world: Surroundings) -> None:
        assert self.holds is not None
        match what_next(self.holds, self.script.steps, abandoned=self._at_boundary()):
            case Next.RECOVER:
                self._unwind(world)
            case Next.FINISH:
                self.enter(MemberPhase.FINISHED)
                self._ask_for_release(world)
            case Next.STEP:
                self.attempt = self.holds
                self.enter(MemberPhase.COMPUTING)

    def _at_boundary(self) -> bool:
        """Has it come to where it was to leave its generation? The end of the script is as good."""
        assert self.holds is not None
        if self.boundary is None or self.holds < min(self.boundary[1], self.script.steps):
            return False
        self.heard, self.boundary = max(self.heard, self.boundary[0]), None
        return True

    def _meet(self, world: Surroundings, phase: MemberPhase) -> None:
        step = self.attempt if phase is not MemberPhase.REGROUPING else self.target
        if phase is MemberPhase.EVALUATING:
            step = len(self.state or ()) * _MOST_IN_TAIL + self.tail
        meeting = (self.acting, phase.value, step)
        self.enter(phase, meeting)
        world.arrive(self, meeting)

    def _apply(self, world: Surroundings) -> None:
        assert self.state is not None
        self.state = (*self.state, self.attempt)
        self.arrived = False
        world.on_applied(self)

    def _finish_saving(self, world: Surroundings) -> None:
        """If the copy did not get to another host, the step counts when it has been sent again."""
        if self.saving is not None and world.save(self, self.saving):
            world.on_committed(self)
        self.saving = None

    def _establish(self, world: Surroundings) -> None:
        if self._unwind_if_abandoned(world):
            return
        if self.script.peer_snapshot_every and self.state is not None:
            world.save(self, self.state)  # a member that has seen that all are there knows that all have saved
        self._meet(world, MemberPhase.ESTABLISHING)

    def _go_on(self, world: Surroundings) -> None:
        """After a commit."""
        self.tail = 0
        self._go_on_in_tail(world)

    def _go_on_in_tail(self, world: Surroundings) -> None:
        assert self.state is not None
        if self._unwind_if_abandoned(world):
            return
        if self.script.has_tail(self.state) and self.tail < self.script.tail_length:
            self._meet(world, MemberPhase.EVALUATING)
        else:
            self.enter(MemberPhase.BETWEEN)

    def _save_for_restart(self, world: Surroundings) -> None:
        self.arrived = False
        if self.holds == self.target and self.state is not None:
            world.save(self, self.state)
        self.resumed = True
        world.send(self, ev.MemberResumed(at=world.now, member=self.id, generation=self.acting))
        self.enter(MemberPhase.UNWOUND)

    def _regroup(self, world: Surroundings) -> None:
        self.arrived = False  # an attempt that is not applied by now is dropped
        if self.poisoned:
            why = "RegroupError: too many open files"
            world.send(self, ev.RecoveryFailed(at=world.now, member=self.id, generation=self.acting, why=why))
            self.enter(MemberPhase.UNWOUND)
            return
        self._meet(world, MemberPhase.REGROUPING)

    def _resume(self, world: Surroundings) -> None:
        assert self.rank is not None
        if not self.script.peer_snapshot_every:
            world.forget_after(self, -1)  # copies for a restart
        elif world.has_other_hosts:
            self.saving = self.state
        self.resumed = self.established = True  # in a world that goes on, all have left what a replacement needs
        world.on_resumed(self)
        self.was_sound = not self.spoilt or self.script.only_loss
        self.held = max((len(copy) for copy in world.saved(self) if len(copy) < self.target), default=None)
        self._say_resumed(world)
        if self.resumes_in_tail or self.in_tail or self.before_tail:
            self.in_tail = self.before_tail = False  # a member cannot leave its script's own code
            self._go_on_in_tail(world)
        else:
            self.enter(MemberPhase.BETWEEN)

    def _say_resumed(self, world: Surroundings) -> None:
        event = ev.MemberResumed(at=world.now, member=self.id, generation=self.acting, finite=self.was_sound)
        world.send(self, event)

    def _unwind_if_abandoned(self, world: Surroundings) -> bool:
        if self.heard <= self.acting:
            return False
        self._unwind(world)
        return True

    def _unwind(self, world: Surroundings) -> None:
        if self.phase is MemberPhase.EVALUATING:
            self.in_tail = True  # until it has resumed, through as many generations as it takes
        self.enter(MemberPhase.UNWOUND)
        self._report(world)

    # -- saying -------------------------------------------------------------------------------------------------------

    def position(self) -> Position:
        kept = None if self.kept is None else StepNumber(self.kept)
        return Position(
            holds=self.holds,
            arrived=self.arrived,
            established=self.established,
            kept=kept,
            tail=self.tail,
            in_tail=self.in_tail or self.before_tail,
            has_tails=self.script.tail_every > 0,
        )

    def _saved(self, world: Surroundings) -> tuple[StepNumber, ...]:
        self._finish_saving(world)
        return () if self.rank is None else tuple(StepNumber(len(state)) for state in world.saved(self))

    def _report(self, world: Surroundings) -> None:
        saved = self._saved(world)
        event = ev.PositionReported(
            at=world.now,
            member=self.id,
            generation=self.heard,
            position=replace(self.position(), saved=saved, keeps=world.keeps(self)),
            twin_key=None if self.rank is None else self.twin_key,
            holdings=() if self.rank is None else self.holdings,
        )
        world.send(self, event)

    def _say_prepared(self, world: Surroundings) -> None:
        event = ev.MemberPrepared(
            at=world.now,
            member=self.id,
            generation=self.assigned_in,
            twin_key=self.twin_key,
            holdings=self.holdings,
            saved=self._saved(world),
            keeps=world.keeps(self),
        )
        world.send(self, event)

    def _ask_for_release(self, world: Surroundings) -> None:
        if self.saving is not None and not world.reaches_keeper(self):
            return
        self._finish_saving(world)
        world.send(self, ev.MemberFinished(at=world.now, member=self.id, generation=self.acting))
