"""One member of the job, inside the worker process: what it holds, and how it comes through a recovery.

Runs in the main thread only. The control thread (`control`) interrupts it; the pure rule (`protocol.commit`) tells it
what to do; `groups` and `state` do it. Everything here may be interrupted by the next fault and is then done again in
the next generation.
"""

import functools
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist

from understudy.detection.progress import Place, ProgressWriter
from understudy.errors import StepAbandoned, TransferError, UnderstudyError, UnfitError, UsageError
from understudy.foundation.ids import Generation, StepNumber
from understudy.groups.engines import Engines
from understudy.groups.fence import Fences
from understudy.groups.prompter import Script
from understudy.groups.stillness import Stillness
from understudy.groups.world import World
from understudy.ledger.records import TransferRecord
from understudy.protocol import events as ev
from understudy.protocol.commands import ResumeAt
from understudy.protocol.positions import Position
from understudy.protocol.rungs import Rung
from understudy.state.buffers import ChangingBuffers
from understudy.state.giving import Outgoing
from understudy.state.mail import DefaultGroup, Mail
from understudy.state.manifest import Protected
from understudy.state.rank_local import Shown, differing, digests_of, shared_buffers, some_differ, statistics_of
from understudy.state.taking import Taking
from understudy.state.undo import Undo
from understudy.training.bequest import Bequest, BequestFile
from understudy.training.between_steps import BetweenSteps
from understudy.training.borrowed import Borrowed
from understudy.training.checkpointing import Checkpointing
from understudy.training.control import ControlLine
from understudy.training.copies import Copies
from understudy.training.degrading import Degrading
from understudy.training.fingerprint import fingerprint_of
from understudy.training.habits import Habits
from understudy.training.hints import add_hint
from understudy.training.learning import PATIENCE, Learning, told_apart
from understudy.training.likeness import Likeness, difference, likeness_of
from understudy.training.own_buffers import OwnBuffers, named
from understudy.training.own_state import OwnState
from understudy.training.probation import Probation, resumes_finite
from understudy.training.record import StepLedger
from understudy.training.saving import Saving
from understudy.wire import messages

_LIKELY_DONORS = 2
"""The lowest living twin gives; so the two lowest get ready, and all others leave the processor to the joiner."""

_LONGEST_UNREST = 0.25
"""Seconds after which the connections of an abandoned generation are broken even if some thread still runs, or
something is still to be sent."""

PhaseListener = Callable[[str, int], None]


class Member:
    """`holds`: the number of committed steps in this member's state, None while it has none."""

    def __init__(
        self,
        *,
        control: ControlLine,
        world: World,
        fences: Fences,
        own_state: OwnState,
        own_buffers: OwnBuffers,
        protected: Protected,
        bequest: BequestFile,
        host: str,
        progress: ProgressWriter,
        ledger: StepLedger,
        joiner: bool,
        saving: Saving,
        checkpoints: Checkpointing,
        compare_every: int = 0,
    ) -> None:
        assignment = control.assignment
        assert assignment is not None
        self.control, self.world, self.ledger, self._progress = control, world, ledger, progress
        self.fences, self.own_state, self._bequest, self._host = fences, own_state, bequest, host
        self.own_buffers, self.protected = own_buffers, protected
        own_state.note = own_buffers.note = ledger.note = self.note
        self.joiner, self.saving, self.checkpoints = joiner, saving, checkpoints
        self.copies = Copies(compare_every, lambda: control.agreed)
        self.engines = Engines(())
        self.buffers = ChangingBuffers(())
        self.habits = Habits()
        self.learning = Learning(protected)
        world.on_collective = self.habits.collective
        self.undo = Undo(self.protected)
        self.undoes = False  # fences are at the ends of bodies, on all ranks alike
        self.probation = Probation()
        self.degrading: Degrading | None = None  # known when the loop over the steps begins
        self.generation, self.founded_in = assignment.generation, assignment.founded_in
        self.holds: StepNumber | None = None if joiner else StepNumber(0)
        self.established = joiner
        self.began_at = StepNumber(0)  # the first step of this world: a durable checkpoint may have been resumed
        self.in_steps, self._at_bridge = False, False
        self.failed = False  # the script has raised: this process is on its way out
        self.fenced: bool | None = None
        self._shown: Shown | None = None  # to all ranks, once the world is established
        self._holdings: dict[str, int] = {}
        self._outgoing: tuple[StepNumber, Outgoing] | None = None
        self._likely_donor = False
        self._somebody_is_alone = False
        self.somebody_has_a_twin = False
        self._bridge: Mail | None = None  # kept, because what was posted last may still be on its way
        self._bridge_trouble = "nobody asked for it"
        self.mail = Mail(DefaultGroup(world.place_of))
        self._stillness = Stillness()
        self._trained = not joiner  # its engines are as its steps, or other ranks, have made them
        self._is_unfit = False
        self.total = 0  # of steps; known when the loop over them begins
        self._predecessor: Likeness | None = None  # of a joiner that has not resumed yet
        self._interrupted_for, self._interrupted_at = Generation(0), 0.0
        self._listeners: list[PhaseListener] = []
        self.between_steps = False  # the main thread is in the script's own code between two steps
        self.between = BetweenSteps(self)
        self._borrowed = Borrowed(self.protected, world.rank)
        self.in_tail = False  # since the last recovery others go on between two steps, and this member with them
        control.when_abandoned(self._interrupt, self._answer_for_main)
        control.in_gradient_wait = lambda: self.engines.waits.waiting

    # -- what others ask --------------------------------------------------------------------------------------------

    def on_phase(self, listener: PhaseListener) -> None:
        """Tell `listener(phase, generation)` when this member enters a phase of a recovery."""
        self._listeners.append(listener)

    def phase(self, name: str) -> None:
        for listener in self._listeners:
            listener(name, self.generation)

    def show(self, place: Place) -> None:
        self._progress.show(self.generation, -1 if self.holds is None else self.holds, place)

    def show_compute(self, step: int, seconds: float) -> None:
        """`seconds`: from the begin of the step to its fence."""
        self._progress.show_compute(step, max(0.0, seconds - self.engines.waits.seconds))

    @property
    def abandoned(self) -> bool:
        return self.control.abandoned > self.generation

    @property
    def interrupted(self) -> bool:
        """Is waiting for others pointless? In setup it never is: a founder that must begin again is killed. Whoever
        takes over a rank that moves waits for its leaver before its own first step, and that one may die."""
        return (self.in_steps or self._at_bridge) and self.abandoned

    def lost_contact(self) -> bool:
        """Is an exception in the body explained by a fault elsewhere?"""
        return self.abandoned or self.world.connections.broken()

    def position(self) -> Position:
        tail, waiting = self.between.done, self.between.waiting
        return Position(holds=self.holds, established=self.established, tail=tail, in_tail=waiting)

    # -- called by the control thread -----------------------------------------------------------------------------

    def _interrupt(self) -> None:
        """Called again and again until the main thread has noticed. Breaking waits for stillness, but not forever."""
        if not self.in_steps:
            return
        if self._interrupted_for != self.control.abandoned:
            self._interrupted_for, self._interrupted_at = self.control.abandoned, time.monotonic()
            self.saving.neighbour.break_off()
        still = self._stillness.reached() and not self.world.connections.unsent()
        if still or time.monotonic() - self._interrupted_at > _LONGEST_UNREST:
            self.world.connections.break_all()
            self.world.store.interrupt()

    def _answer_for_main(self, generation: Generation) -> ev.PositionReported | None:
        """Before its first step a founding member cannot be saved, and its main thread need not be asked. Between two
        steps what it holds is certain, however long the script evaluates or saves there."""
        if not self.in_steps and not self.joiner:
            nothing_yet = Position(holds=None, established=False)
            return ev.PositionReported(
                at=ev.UNTIMED, member=self.control.member, generation=generation, position=nothing_yet
            )
        if not self.in_steps or not self.between_steps:
            return None
        return ev.PositionReported(
            at=ev.UNTIMED,
            member=self.control.member,
            generation=generation,
            position=Position(holds=self.holds, established=self.established),
            provisional=True,
            twin_key=self._twin_key,
            holdings=self._holdings_to_tell(),
        )

    # -- the first step -----------------------------------------------------------------------------------------------

    def all_have_learnt(self) -> bool:
        """Asked after each step of a world that is not established, by all ranks, which get the same answer."""
        if self._shown is not None:
            return True  # all had, in an attempt that was cut short
        learnt, step = self.learning.look(), self.learning.steps
        if step >= PATIENCE:
            return True
        self.world.store.set(self._vote_path(step, self.world.rank), "1" if learnt else "0")
        votes = self.world.store.multi_get([self._vote_path(step, rank) for rank in self.world.present])
        return all(vote == b"1" for vote in votes)

    def establish(self) -> None:
        """The end of the step in which the engines have settled, a world's first one mostly: learn who is whose twin.

        Who has shown its key has settled; who has seen all keys knows that all have. So if nobody has seen them all,
        nobody has committed that step, and the world can start over.
        """
        if self._shown is None:
            self.learning.end()
            learning, replicated = self.learning, self.protected.replicated_units()
            self._holdings = told_apart(learning.held, learning.trained, replicated, self.world.rank)
            self._shown = Shown(
                twin_key=self.protected.twin_key(self._holdings),
                statistics=bool(statistics_of(self.protected)),
                buffers=digests_of(shared_buffers(self.protected)),
                unproven=not learning.trained,
            )
            script = self.world.finish_script()
            likeness = likeness_of(self.protected, self.total)
            self._bequest.write(Bequest(script=script, holdings=self._holdings, shown=self._shown, likeness=likeness))
            if self._bequest.trouble is not None:
                self.note(
                    f"what rank {self.world.rank} was told in its setup could not be left in shared memory for a "
                    f"replacement: {self._bequest.trouble}. Only the short messages are, with the coordinator"
                )
            self.saving.save_first(self, 1 + (self.holds or 0))
        self._show()
        self.learn_twins()
        self._tell_of_own_buffers()
        self.established = True  # not earlier: a rank that has shown no key left nothing for a replacement
        if self._host or self._bequest.trouble:
            self.control.send(messages.BequestTold(content=self._bequest.read().for_elsewhere().encode()))
        self.control.send(
            ev.MemberEstablished(
                at=ev.UNTIMED,
                member=self.control.member,
                generation=self.generation,
                twin_key=self._shown.twin_key,
                holdings=tuple(self._holdings.values()),
                replica=self.degrading.replica(self.world.rank, self.world.size) if self.degrading else (),
                began_at=self.began_at,
            )
        )
        self._agree_on_undo()

    def _agree_on_undo(self) -> None:
        """Where some ranks met at their first optimizer and others at the ends of their bodies, both would wait for
        ever. Bodies may differ from rank to rank, and a joiner has seen no body but its rehearsal."""
        wanted = torch.tensor([int(self.undoes or self.habits.late)], device=self.world.device)
        dist.all_reduce(wanted, dist.ReduceOp.MAX)
        self._undo_from_now_on(bool(wanted.item()))

    def notice_habits(self, step: int) -> None:
        """A later body may be the first to compute on after an optimizer. It was fenced in the usual way."""
        if self.established and self.habits.late and not self.undoes:
            self._undo_from_now_on(True, f" from step {step + 1} on")

    def _undo_from_now_on(self, wanted: bool, since: str = "") -> None:
        if wanted and not self.undoes and self.world.rank == 0 and not self.joiner:
            self.note(
                "the body computes or communicates after an optimizer has stepped (several optimizers, a closure, an "
                "optimizer that communicates): what they change is copied in every step, so that it can be taken back "
                f"after a fault{since}. That takes as much memory again as parameters and optimizer state"
            )
        self.undoes = wanted

    def inherit(self) -> Script:
        """A joiner is the twin of whoever was the twin of its predecessor. Returns what that was told in its setup."""
        assert self.control.assignment is not None
        bequest = self._bequest.read()
        if bequest.shown is None:  # the rank was on another host
            bequest = Bequest.decode(self.control.assignment.bequest)
        if bequest.shown is None:
            raise TransferError(f"rank {self.world.rank} left nothing behind for its replacement")
        self._shown, self._holdings = bequest.shown, bequest.holdings
        self._predecessor = bequest.likeness
        return bequest.script

    def learn_twins(self) -> None:
        """Where all ranks are twins no fence is needed: a laggard copies the newer state."""
        if self.fenced is None:
            ranks = self.world.present
            told = [Shown.decode(one) for one in self.world.store.multi_get([self._path(rank) for rank in ranks])]
            keys = [one.twin_key for one in told]
            own_buffers = some_differ(told)  # like own state: nobody could be told later what they should have been
            unproven = any(one.unproven for one in told)
            self.fenced = len(set(keys)) > 1 or own_buffers or unproven or self.own_state.exists
            self.ledger.rank_local = differing(self.protected, self.world.rank, dict(zip(ranks, told, strict=True)))
            self.own_buffers.use(self.ledger.rank_local)
            self._somebody_is_alone = any(count == 1 for count in Counter(keys).values())
            self.somebody_has_a_twin = len(set(keys)) < len(keys)
            if not self._somebody_is_alone:
                self.saving.nobody_is_alone()
            place = ranks.index(self.world.rank)
            lower_twins = keys[:place].count(keys[place])
            self._likely_donor = lower_twins < _LIKELY_DONORS

    def _holdings_to_tell(self) -> tuple[int, ...]:
        return tuple(self._holdings.values()) if self._somebody_is_alone else ()

    def _tell_of_own_buffers(self) -> None:
        """Once for all ranks: those without a twin have nobody to differ from."""
        if self.ledger.rank_local and self.world.rank == 0 and self.somebody_has_a_twin:
            self.note(
                f"buffers that replicas do not share, such as batch-norm statistics: {named(self.ledger.rank_local)}. "
                "They are kept with their rank on its host; a replacement on another host goes on with a twin's"
            )

    @property
    def _twin_key(self) -> str | None:
        return None if self._shown is None else self._shown.twin_key

    def _show(self) -> None:
        assert self._shown is not None
        self.world.store.set(self._path(self.world.rank), self._shown.encode())

    def _vote_path(self, step: int, rank: int) -> str:
        return f"learnt/{self.founded_in}/{step}/{rank}"

    def _path(self, rank: int) -> str:
        return f"twins/{self.founded_in}/{rank}"

    # -- recovery -----------------------------------------------------------------------------------------------------

    def await_verdict(self, position: Position) -> ResumeAt:
        """Report where we stand and wait for the plan, through as many generations as it takes."""
        self.between_steps = False
        self.show(Place.RECOVERING)
        while True:
            self.generation = self.control.notice()
            self.saving.neighbour.break_off()
            self.phase("stop")
            self.control.send(
                ev.PositionReported(
                    at=ev.UNTIMED,
                    member=self.control.member,
                    generation=self.generation,
                    position=replace(
                        position,
                        kept=self.copies.kept,
                        saved=self.saving.steps(),
                        keeps=self.saving.neighbour.keeps(),
                    ),
                    twin_key=self._twin_key,
                    holdings=self._holdings_to_tell(),
                )
            )
            if self.control.leaving or self.control.taking:
                self._meet_at_bridge()
            elif position.holds is not None and not position.arrived and self._may_have_to_give():
                self._get_ready_to_give(position.holds)
            plan = self.control.await_plan(self.generation, self.checkpoints.steps)
            if plan is not None:
                return plan

    def _meet_at_bridge(self) -> None:
        """Whoever leaves and whoever takes over. If it fails the plan of this generation cannot be carried out."""
        self._bridge, self._at_bridge = None, True
        try:
            self._bridge = Mail(self.world.bridge(self.generation, leaver=self.control.leaving))
        except (RuntimeError, OSError, UnderstudyError, StepAbandoned) as error:
            self._bridge_trouble = f"{type(error).__name__}: {error}"
        finally:
            self._at_bridge = False

    def _across_bridge(self) -> Mail:
        if self._bridge is None:
            raise TransferError(f"no connection between leaver and successor: {self._bridge_trouble}")
        return self._bridge

    def _may_have_to_give(self) -> bool:
        """Not at a boundary: only leavers give there, and at once; to be ready would take longer than to serve."""
        return self._likely_donor and not self.control.at_boundary

    def _get_ready_to_give(self, holds: StepNumber) -> None:
        """A joiner rehearses now, and we have nothing to do: take the digests of what we may have to send it."""
        self.engines.forget_iteration()  # a step that was cut short may have left parameters gathered from all shards
        self._outgoing = (holds, self._make_outgoing())
        self._outgoing[1].take_digests()

    def await_word(self, why: str) -> None:
        """Contact is lost: say so, and wait until a new generation is opened, however long that takes. Nobody who holds
        state gives up because no coordinator is there."""
        self.show(Place.RECOVERING)
        if not self.abandoned:
            lost = ev.ContactLost(at=ev.UNTIMED, member=self.control.member, generation=self.generation, why=why[:1000])
            self.control.send(lost)
            self._await_next_generation()

    def _await_next_generation(self) -> None:
        self.control.await_abandonment(self.generation)

    def recover(self, before_plan: Callable[[], None] = lambda: None) -> None:
        """From an abandoned generation to a resumed one. `before_plan` runs once the verdict is known."""
        plan = self.await_verdict(self.position())
        before_plan()
        self.carry_out(plan)

    def await_first_plan(self) -> ResumeAt:
        """A rehearsed joiner waits for groups and state."""
        assert self._twin_key is not None
        self.control.send(
            ev.MemberPrepared(
                at=ev.UNTIMED,
                member=self.control.member,
                generation=self.generation,
                twin_key=self._twin_key,
                holdings=tuple(self._holdings.values()),
                saved=self.saving.steps(),
                keeps=self.saving.neighbour.keeps(),
            )
        )
        plan = self.control.await_plan(self.generation, self.checkpoints.steps)
        return plan if plan is not None else self.await_verdict(self.position())

    def come_back_to_loop(self) -> None:
        """The script is done with what comes after a step."""
        if not self._borrowed.changed:
            self._borrowed.forget()
            return
        what = (
            f"rank {self.world.rank} took its state while others were between two steps, and its script has changed it"
        )
        if self._borrowed.alone:
            self._borrowed.forget()
            self.note(f"{what}; whoever gave it has been replaced as well: it may have been changed twice")
            return
        self.holds, self._outgoing = None, None
        self.await_word(f"{what}: it takes the others' again")
        self.recover()

    def go_on_between_steps(self) -> None:
        """In the script's own code, after a recovery."""
        self.show(Place.BETWEEN_STEPS)
        self.between_steps = True

    def carry_out(self, plan: ResumeAt) -> None:
        """Regroup, give or take state, resume. A fault meanwhile: once more in the next generation."""
        pause = 0.0  # trouble that comes again at once gets time to pass
        while True:
            trouble = self._try_to_carry_out(plan)
            if trouble is None:
                return
            if not self.abandoned:
                time.sleep(pause)
                pause = min(2.0, 2 * pause + 0.05)
                failed = ev.RecoveryFailed(
                    at=ev.UNTIMED,
                    member=self.control.member,
                    generation=self.generation,
                    why=trouble,
                    unfit=self._is_unfit,
                )
                self.control.send(failed)
                self._await_next_generation()
            plan = self.await_verdict(self.position())

    def _try_to_carry_out(self, plan: ResumeAt) -> str | None:
        if self.control.member in plan.leavers:
            return self._try_to_hand_over(plan)
        if plan.rung is Rung.RESTART:
            return self._save_and_wait(plan)
        if self.control.at_boundary:
            self.world.connections.break_all()  # nobody uses them any more; gloo takes longer to end whole ones
        timings: dict[str, float] = {}
        try:
            self._compare_with_predecessor()
            self._go_back_if_wanted(plan)
            with _timed(timings, "regroup"):
                self.phase("regroup")
                self.world.store.move(plan.store_address)
                self.world.regroup(self.generation, plan.absent)
                self._make_engines_equal(plan)
                self._go_without(plan.absent)
                self._show()  # the store may be a new one
                self.learn_twins()
                self._agree_on_undo()
                self.saving.connect(self)
            with _timed(timings, "transfer"):
                self.phase("transfer")
                received = self._transfer(plan)
                self.between.exchange(plan.tail, received=plan.receives(self.world.rank))
                self._borrowed.transferred(dict(plan.donors), between_steps=plan.tail is not None)
            self._trained, self.in_tail = True, plan.tail is not None
        except UnfitError as error:
            self._is_unfit = True
            return str(error)
        except (RuntimeError, OSError, UnderstudyError, StepAbandoned) as error:
            return f"{type(error).__name__}: {error}"
        self._outgoing = None
        self.probation.begin(self, plan)
        self.saving.resumed(self)
        self.checkpoints.new_generation(self)
        finite = resumes_finite(self, plan)
        self.phase("resume")
        if self.abandoned:
            return "a new generation was opened"
        self._tell_resumed(timings, received, finite)
        self.world.forget_former()
        return None

    def _go_back_if_wanted(self, plan: ResumeAt) -> None:
        """Whoever receives nothing has the state, or a copy of it: one that all twins agreed on, or a saved one."""
        from_memory = plan.rung is Rung.PEER_MEMORY and (plan.distrust or self.holds != plan.step)
        if not plan.receives(self.world.rank) and (plan.rewind or from_memory):
            self.holds, self._outgoing = None, None
            self.engines.forget_iteration()
            if plan.rewind:
                self.copies.go_back(self.protected, plan.step)
                self.holds = StepNumber(plan.step)
            else:
                self.phase("bring back")
                self.saving.bring_back(self, plan.step)
        elif plan.rung is Rung.CHECKPOINT:
            self._outgoing = None
            self.phase("load")
            self.engines.forget_iteration()
            self.checkpoints.load(self, plan.step)
        if plan.distrust:
            self.copies.forget_after(plan.step)
        self.saving.forget_after(self, plan.step)

    def _compare_with_predecessor(self) -> None:
        if self._predecessor is not None:
            differs = difference(self._predecessor, likeness_of(self.protected, self.total))
            if differs is not None:
                raise UnfitError(f"the replacement's script does not do what rank {self.world.rank}'s did: {differs}")
            self._predecessor = None

    def _make_engines_equal(self, plan: ResumeAt) -> None:
        """Like those of ranks that hold the state with which everybody goes on, and have trained up to it."""
        trained = self._trained and not plan.receives(self.world.rank)
        self.engines.reset(functools.partial(self.world.show_to_group, self.generation), trained)

    def _go_without(self, absent: tuple[int, ...]) -> None:
        """Ranks that may be degraded have a share each, by the same number."""
        self.fences.absent = absent
        if self.degrading is not None:
            self.degrading.go_without(absent)

    def _save_and_wait(self, plan: ResumeAt) -> str:
        """All processes begin anew. What we hold is saved for whoever has this rank next."""
        try:
            if self.holds == plan.step:
                self.phase("save")
                self.engines.forget_iteration()
                self.saving.save_now(self)
        except (RuntimeError, OSError, UnderstudyError) as error:
            return f"{type(error).__name__}: {error}"
        self._tell_resumed({}, None, finite=True)
        self._await_next_generation()
        return "a new generation was opened"

    def _try_to_hand_over(self, plan: ResumeAt) -> str | None:
        """Somebody else has this rank now, and takes our state. Then there is nothing left to do but to be ended."""
        try:
            self.phase("hand over")
            self._give(plan.step).give_to(self._across_bridge(), self.world.rank)
        except (RuntimeError, OSError, UnderstudyError, StepAbandoned) as error:
            return f"{type(error).__name__}: {error}"
        self._await_next_generation()
        return "a new generation was opened"

    def _transfer(self, plan: ResumeAt) -> TransferRecord | None:
        received = None
        self.mail.begin()
        for receiver, donors in plan.donors:
            if receiver == self.world.rank:
                wanted = None if receiver in plan.from_copies else frozenset(self._holdings.values())
                from_leaver = receiver in donors
                mail = self._across_bridge() if from_leaver else self.mail
                taking = Taking(
                    mail, receiver, self.protected, donors, wanted, self._host, moved=self._show_that_it_moves
                )
                is_own = from_leaver or receiver in plan.from_copies  # with the buffers that belong to this rank
                if not is_own:
                    self.own_buffers.hold()
                received = taking.run(self._tear)
                if not is_own:
                    self.own_buffers.put_back(plan.step)
                self.holds = StepNumber(plan.step)
                self.ledger.inherited(self.protected, self.generation, plan.step - 1)
            elif self.world.rank in donors and receiver in plan.from_copies:
                Outgoing(self.saving.neighbour.read(receiver, plan.step)).give_to(self.mail, receiver)
            elif self.world.rank in donors:
                self._give(plan.step).give_to(self.mail, receiver)
        return received

    def _show_that_it_moves(self) -> None:
        """A transfer may take long; as long as something arrives, nobody is called late."""
        self.show(Place.RECOVERING)

    def _tell_resumed(self, timings: dict[str, float], received: TransferRecord | None, finite: bool) -> None:
        generation = self.generation
        self.control.send(messages.Measured(generation=generation, timings=timings, transfer=received))
        resumed = ev.MemberResumed(at=ev.UNTIMED, member=self.control.member, generation=generation, finite=finite)
        self.control.send(resumed)

    def _tear(self) -> None:
        """The first byte is about to land. What this member held before is gone until the last digest is checked."""
        self.holds = None

    def _give(self, step: int) -> Outgoing:
        """What was made ready, if it is the state that the plan asks for."""
        holds, outgoing = self._outgoing or (None, None)
        return outgoing if outgoing is not None and holds == step else self._make_outgoing()

    def _make_outgoing(self) -> Outgoing:
        numbers = {path: self._holdings.get(unit, 0) for path, unit in self.protected.units().items()}
        return Outgoing(self.protected, numbers, self._host)

    # -- telling -----------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        self.control.send(messages.Note(text=text))

    def report_script_error(self, error: BaseException, step: int | None) -> None:
        if self.failed:
            return
        self.failed = True
        if not isinstance(error, Exception):
            return  # KeyboardInterrupt speaks for itself
        hinted = add_hint(error)
        summary = "".join(traceback.format_exception_only(error)).strip()
        self.control.send(
            messages.ScriptFailed(
                step=step,
                summary=summary[-2000:],
                fingerprint=fingerprint_of(error),
                repeats=hinted or self._would_repeat(error, step),
            )
        )

    def _would_repeat(self, error: Exception, step: int | None) -> bool:
        """Must the script be changed? What is wrong in the very first step (shapes, types) is wrong in any process;
        memory and files may have been short by accident."""
        in_first_step = step is not None and not self.established
        return isinstance(error, UsageError) or (in_first_step and not isinstance(error, OSError | MemoryError))


class _timed:
    """Adds the seconds spent inside to `timings[name]`."""

    def __init__(self, timings: dict[str, float], name: str) -> None:
        self._timings, self._name = timings, name

    def __enter__(self) -> None:
        self._start = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._timings[self._name] = time.monotonic() - self._start
