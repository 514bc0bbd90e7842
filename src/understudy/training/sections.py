"""Sections: what a script does between two steps as a whole, such as an evaluation or the writing of a checkpoint.

    called ──▶ running ──function returns──▶ arrived ──all ranks have arrived──▶ over
                  ▲                            │
                  └────────── a fault ─────────┘

All ranks have finished a section, or all run it again: its end is a fence. So whatever communicates in it may be cut
short, in any group and below Python as well. What the function has changed on the way is put back first: buffers,
whether modules train or evaluate, protected objects with a small state (a scheduler, a meter) and random numbers, which
are a function of the step and of the section's place after it. What it has written or printed happens at least once.

A rank that has just joined is told the results of the sections that are over (`recovery.tail`), and runs those that are
not with the others. With a result it gets the small state that was there behind the section: so what the script decides
and changes between two sections (`if best.look(loss): save()`) it decides and changes as the others did.
"""

from collections.abc import Callable
from typing import Any

from understudy.errors import ProtectError, StepAbandoned
from understudy.foundation.ids import StepNumber
from understudy.groups.fence import AFTER_STEP, Fences
from understudy.training.body import Body
from understudy.training.contact import Contact
from understudy.training.loop_state import LoopState
from understudy.training.rank_local.state import RankLocalState
from understudy.training.recovery.recovery import Recovery
from understudy.training.recovery.tail import TailResults
from understudy.training.script_errors import ScriptErrors
from understudy.training.status import MemberStatus

Seed = Callable[[int, int], None]
"""Seeds the random streams for the section at a place after a step."""


class Sections:
    """Of one member."""

    def __init__(
        self,
        *,
        status: MemberStatus,
        contact: Contact,
        fences: Fences,
        body: Body,
        rank_local: RankLocalState,
        tail: TailResults,
        recovery: Recovery,
        errors: ScriptErrors,
        note: Callable[[str], None],
    ) -> None:
        self._status, self._contact, self._fences, self._body = status, contact, fences, body
        self._rank_local, self._tail, self._recovery, self._errors = rank_local, tail, recovery, errors
        self._note = note
        self._last: dict[str, Any] = {}  # the result of each section, when it was over for the last time
        self.seed: Seed = lambda _step, _place: None
        self.loop: LoopState | None = None  # of a loop of windows

    def run(self, name: str, function: Callable[[], Any]) -> Any:
        """In a step, in another section and before the first step it is the function alone."""
        status = self._status
        if not status.between_steps or status.in_section:
            return function()
        place = self._tail.done
        step = StepNumber((status.holds or 0) - 1)  # the one that it follows
        if self._tail.is_void:
            return self._last_result(name)
        if self._tail.is_told:
            return self._told(name)
        self._rank_local.inherit_before(step + 1)
        self._body.remember()
        taken = b"" if self.loop is None else self.loop.take()
        while True:
            result, trouble = self._attempt(step, place, name, function)
            if trouble is None:
                return self._over(step, name, result)
            arrived = isinstance(trouble, _AtItsEnd)
            self._recover(name, trouble)
            if self._tail.is_void:
                return self._last_result(name)
            if self._tail.is_told:
                told = self._told(name)
                return result if arrived else told
            if self.loop is not None:
                self.loop.put(taken)
                self.loop.forget_sections_from(place)

    def _attempt(
        self, step: StepNumber, place: int, name: str, function: Callable[[], Any]
    ) -> tuple[Any, BaseException | None]:
        """The result, and the fault that has cut it short, if one has."""
        status, result, is_run = self._status, None, False
        status.in_section = True
        try:
            if status.abandoned:
                raise StepAbandoned(f"the generation was abandoned before the section {name}")
            self.seed(step, place)
            result = function()
            is_run = True
            if self.loop is not None:
                self.loop.section_ends(name, result)
            self._fences.of(status.generation).meet(step, self._contact.lost, AFTER_STEP + place)
        except (Exception, StepAbandoned) as error:
            if not self._contact.lost():
                self._errors.report(error, None)
                raise
            return result, _AtItsEnd(str(error)) if is_run else error
        finally:
            status.in_section = False
        return result, None

    def _over(self, step: StepNumber, name: str, result: Any) -> Any:
        self._tail.keep_value(name, result, self._small_state())
        self._last[name] = result
        self._body.arrive(step)  # it may have changed what only this rank has
        self._body.forget()
        return result

    def _small_state(self) -> bytes | None:
        """Of a loop of windows something else is kept (`loop`)."""
        if self.loop is not None:
            return None
        try:
            return self._body.small.read()
        except ProtectError:  # it holds what cannot be told
            return None

    def _told(self, name: str) -> Any:
        if self.loop is not None:
            self.loop.pass_section(self._tail.done)
        known, result, small = self._tail.take_value(name)
        if small is not None:
            self._body.small.put(small)
        if known:
            self._last[name] = result
            return result
        return self._last_result(name)

    def _last_result(self, name: str) -> Any:
        result = self._last.get(name)
        self._note(
            f"the result of the section {name} is not known to this rank: it goes on with that of the last time "
            f"({result!r:.100})"
        )
        return result

    def _recover(self, name: str, error: BaseException) -> None:
        self._contact.look_at(error)
        self._contact.come_to_rest()
        self._body.put_back()
        self._contact.await_word(f"in the section {name}: {type(error).__name__}: {error}")
        self._tail.waiting = True
        try:
            self._recovery.recover()
        finally:
            self._tail.waiting = False
        self._status.go_on_between_steps()


class _AtItsEnd(Exception):
    """Contact was lost when the function had returned."""
