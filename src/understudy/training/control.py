"""The worker's line to its agent: one thread that listens while the main thread trains.

When a generation is abandoned, this thread makes blocked collectives fail (the `interrupt` given to it) and goes on
doing so until the main thread has noticed, because the main thread may be just about to block again. Everything else
it only writes down; the main thread reads it when it comes by.
"""

import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec

from understudy.errors import WireError
from understudy.foundation.exits import NO_ORDERS
from understudy.foundation.ids import Generation, MemberId, StepNumber
from understudy.protocol import commands as cmd
from understudy.protocol import events as ev
from understudy.protocol.sentences import sentence
from understudy.training.stacks import activity, all_stacks
from understudy.wire import fd_passing, framing, messages

_INTERRUPT_EVERY = 0.003


Said = messages.Message | ev.Event


class ControlLine:
    """Mailbox between the control thread and the main thread. All waiting uses one condition."""

    def __init__(self, path: str, member: str, token: str) -> None:
        self.member = MemberId(member)
        self._path, self._token = path, token
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._interrupt: Callable[[], object] = lambda: None
        self._answer_for_main: Callable[[Generation], ev.Event | None] = lambda _: None
        self._last_answer: dict[type[Said], Said] = {}
        self.assignment: cmd.AssignRank | None = None
        self.abandoned = Generation(0)  # the newest generation we were told to go to
        self.noticed = Generation(0)  # the newest one that the main thread knows of
        self.reason = ""
        self.boundary: cmd.AbandonGeneration | None = None  # the generation is to be left before a later step
        self.leaving = self.taking = False  # this member hands its rank over, or takes it over from one that does
        self.at_boundary = False  # the newest generation was opened with one, and we came to it
        self._begun = -1  # the newest step that the main thread has begun
        self.plan: cmd.ResumeAt | None = None
        self.agreed: StepNumber | None = None  # the newest state that all twins had in common
        self.released = False
        self.wanted_memory = 0  # bytes that an idle spare is asked to keep ready
        self.in_gradient_wait: Callable[[], bool] = lambda: False
        self._checkpoints_wanted = Generation(0)  # the generation in which they were asked for
        self.send(messages.Hello(member=member, token=token, pid=os.getpid()))
        threading.Thread(target=self._listen, name="understudy-control", daemon=True).start()

    # -- main thread --------------------------------------------------------------------------------------------------

    def send(self, message: Said) -> None:
        with self._sending:
            self._last_answer[type(message)] = message
            try:
                self._socket.sendall(framing.frame(messages.encode(message)))
            except OSError:
                return  # the agent is gone; its death ends us by other means

    def hand_over(self, generation: Generation, connections: Sequence[int]) -> None:
        """The agent holds our connections too, so that our death does not break them."""
        told = fd_passing.PassedConnections(member=self.member, token=self._token, generation=generation)
        fd_passing.send(self._path, told, connections)

    def say_parked(self) -> None:
        self.send(ev.MemberParked(at=ev.UNTIMED, member=self.member))

    def note(self, text: str) -> None:
        """Say something to the operator of the job."""
        self.send(messages.Note(text=text))

    def when_abandoned(
        self,
        interrupt: Callable[[], object],
        answer_for_main: Callable[[Generation], ev.Event | None],
    ) -> None:
        """`interrupt` breaks blocked calls; `answer_for_main` speaks for a main thread that is not in its steps."""
        with self._changed:
            self._interrupt, self._answer_for_main = interrupt, answer_for_main

    def notice(self) -> Generation:
        """The main thread has unwound: no more interrupting for the generation that it now knows of."""
        with self._changed:
            self.noticed = self.abandoned
            return self.abandoned

    def begin_step(self, number: int) -> bool:
        """False: the generation is left here, before this step."""
        with self._changed:
            if self.boundary is not None and number >= (self.boundary.boundary or 0):
                self._come_to(self.boundary)
                return False
            self._begun = number
            return True

    def no_more_steps(self) -> None:
        """A boundary that was to come later is here."""
        with self._changed:
            if self.boundary is not None:
                self._come_to(self.boundary)

    def await_assignment(self, timeout: float | None = None) -> cmd.AssignRank | None:
        with self._changed:
            self._changed.wait_for(lambda: self.assignment is not None, timeout)
            return self.assignment

    def await_assignment_or_wish(self, memory: int) -> cmd.AssignRank | None:
        """The assignment, or None when more than `memory` bytes are to be kept ready first."""
        with self._changed:
            self._changed.wait_for(lambda: self.assignment is not None or self.wanted_memory > memory)
            return self.assignment

    def await_abandonment(self, beyond: Generation) -> None:
        """Without an end: the coordinator may be away for long, and this process ends with its agent."""
        with self._changed:
            self._changed.wait_for(lambda: self.abandoned > beyond)

    def await_plan(
        self, generation: Generation, checkpoints: Callable[[], tuple[StepNumber, ...]] = tuple
    ) -> cmd.ResumeAt | None:
        """The plan for `generation`, or None when a newer generation was opened meanwhile. `checkpoints`: which durable
        ones there are; looked for in this thread, because it may take long, and only on request."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.abandoned > generation or self._has_word_on(generation))
                if self.abandoned > generation:
                    return None
                if self.plan is not None and self.plan.generation == generation:
                    return self.plan
                self._checkpoints_wanted = Generation(0)
            found = checkpoints()
            self.send(ev.CheckpointsTold(at=ev.UNTIMED, member=self.member, generation=generation, steps=found))

    def _has_word_on(self, generation: Generation) -> bool:
        planned = self.plan is not None and self.plan.generation == generation
        return planned or self._checkpoints_wanted == generation

    def await_release(self, generation: Generation, timeout: float) -> bool:
        """True when released; False when abandoned or when it is time to ask again."""
        with self._changed:
            self._changed.wait_for(lambda: self.released or self.abandoned > generation, timeout)
            return self.released

    # -- control thread -----------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            self._listen_until_closed()
        except (WireError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._end(f"the agent sent something that cannot be read ({error})")
        except Exception as error:
            self._end(f"the agent is not listened to any more ({type(error).__name__}: {error})")

    @staticmethod
    def _end(why: str) -> NoReturn:
        """A member that cannot be told of a new generation must not go on in the old one."""
        print(f"understudy: {why}; this process ends, so that another one can take over its rank", file=sys.stderr)
        sys.stderr.flush()
        os._exit(NO_ORDERS)

    def _listen_until_closed(self) -> None:
        poll = select.poll()  # `select` refuses descriptors above 1023, which a script with many files has
        poll.register(self._socket, select.POLLIN)
        while True:
            pending = self.abandoned > self.noticed
            if poll.poll(1000 * _INTERRUPT_EVERY if pending else None):
                data = framing.receive(self._socket)
                if data is None:
                    return
                self._take(messages.decode_from_agent(data))
            if self.abandoned > self.noticed:
                self._interrupt()

    def _take(self, message: messages.FromAgent) -> None:
        answers: list[Said | None] = []
        with self._changed:
            match message:
                case cmd.AssignRank():
                    if self.assignment is not None:
                        answers = [self._repeat(ev.MemberPrepared, message.generation)]
                    self.assignment = message
                case cmd.AskStep(generation=generation):
                    begun = StepNumber(self._begun)
                    answers = [ev.StepTold(at=ev.UNTIMED, member=self.member, generation=generation, step=begun)]
                case cmd.AskCheckpoints(generation=generation):
                    answers = [self._repeat(ev.CheckpointsTold, generation)]
                    self._checkpoints_wanted = Generation(0) if answers[0] is not None else generation
                case cmd.AbandonGeneration(boundary=int(boundary)) if self._is_later(message, boundary):
                    self.boundary = message
                case cmd.AbandonGeneration() if message.generation > self.abandoned:
                    self._abandon(message)
                    answers = [self._answer_for_main(self.abandoned)]
                case cmd.AbandonGeneration():
                    answers = [self._repeat(ev.PositionReported, message.generation)]
                case cmd.ResumeAt(generation=generation):
                    self.plan = message
                    answers = [self._repeat(messages.Measured, generation), self._repeat(ev.MemberResumed, generation)]
                case cmd.KeepAgreed() if message.generation >= self.abandoned:
                    self.agreed = message.step  # of the one we are in; what we reported to a newer one must stay
                case cmd.ReleaseMembers():
                    self.released = True
                case messages.KeepWarm():
                    self.wanted_memory = message.memory
                case messages.AskActivity():
                    answers = [activity(message.number, self._begun, self.abandoned, self.in_gradient_wait())]
                case messages.AskStacks():
                    answers = [all_stacks(message.number, self.in_gradient_wait())]
            self._changed.notify_all()
        for answer in answers:
            if answer is not None:
                self.send(answer)

    def _is_later(self, message: cmd.AbandonGeneration, boundary: int) -> bool:
        """Can the main thread still come to this boundary?"""
        return message.generation > self.abandoned and self._begun < boundary

    def _come_to(self, boundary: cmd.AbandonGeneration) -> None:
        self._abandon(boundary)
        self.at_boundary = True

    def _abandon(self, message: cmd.AbandonGeneration) -> None:
        self.abandoned, self.reason = message.generation, sentence(message.reason)
        self.boundary, self.at_boundary = None, False
        self.leaving, self.taking = self.member in message.leavers, self.member in message.takers

    def _repeat(self, kind: type[Said], generation: Generation) -> Said | None:
        """What was asked for again and has been answered before."""
        answer = self._last_answer.get(kind)
        return answer if getattr(answer, "generation", None) == generation else None
