"""What every rank of this host is doing when the world is silent: asked before the alarm, told after it.

The question goes out when most of the deadline has passed, so that the answers are there when the alarm comes and
nothing waits for them. A process that is stopped, or that holds its interpreter lock, cannot answer; that is said.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from understudy.agent.members import Worker
from understudy.detection.process_state import is_stopped
from understudy.detection.stacks import full_text, grouped, place_of
from understudy.foundation.ids import MemberId
from understudy.wire.messages import AskStacks, Stacks

_LAST_ANSWERS = 0.3  # seconds after an alarm for answers that are still missing

Send = Callable[[MemberId, AskStacks], bool]
Write = Callable[[Path, str, Callable[[str | None], None]], None]
"""Writes a text to a file in the background, and tells what went wrong, or None."""


@dataclass(slots=True)
class _Asked:
    """One member: where its page stood, what the kernel says of it, what it answered."""

    rank: int
    generation: int
    step: int
    state: str
    answer: Stacks | None = None

    def place(self) -> str:
        if is_stopped(self.state):
            return "stopped (by a signal or a debugger), so it cannot say where it is"
        if self.answer is None:
            return "did not answer: it is stuck below Python and holds the interpreter lock, or gets no processor"
        main = self.answer.threads[0].frames if self.answer.threads else []
        return place_of(main, step=self.step, in_gradient_wait=self.answer.in_gradient_wait)


@dataclass(slots=True)
class StackInquiry:
    """`folder`: where the stacks of all threads are written."""

    folder: Path
    send: Send
    say: Callable[[str], None]
    state_of: Callable[[MemberId], str]
    write: Write
    _number: int = 0
    _asked: dict[MemberId, _Asked] = field(default_factory=dict)
    _concluding: asyncio.TimerHandle | None = None
    _told: bool = False  # of the present silence
    _last_told: dict[MemberId, tuple[int, int]] = field(default_factory=dict)  # generation and step it stood in then

    def ask(self, workers: Mapping[MemberId, Worker]) -> None:
        """Once per silence."""
        if self._asked or self._concluding is not None:
            return
        self._number += 1
        for member, worker in workers.items():
            if worker.rank is None:
                continue
            page = worker.page.look()
            self._asked[member] = _Asked(worker.rank, page.generation, page.step, self.state_of(member))
            self.send(member, AskStacks(number=self._number))

    def answered(self, member: MemberId, stacks: Stacks) -> None:
        if member in self._asked and stacks.number == self._number:
            self._asked[member].answer = stacks

    def forget(self) -> None:
        """The world moves again."""
        self._told = False
        if self._concluding is None:
            self._asked = {}

    def alarm(self, workers: Mapping[MemberId, Worker]) -> None:
        """Tell what is known, now or as soon as the last answers may have come. Never blocks."""
        self._told = True
        self.ask(workers)
        if self._concluding is None and self._asked:
            complete = all(asked.answer is not None or is_stopped(asked.state) for asked in self._asked.values())
            wait = 0.0 if complete else _LAST_ANSWERS
            self._concluding = asyncio.get_running_loop().call_later(wait, self._conclude)

    def alarm_once(self, workers: Mapping[MemberId, Worker]) -> None:
        """The same, but not again while the silence goes on."""
        if not self._told:
            self.alarm(workers)

    def alarm_about(self, member: MemberId, workers: Mapping[MemberId, Worker]) -> None:
        """The same, before this member is ended for a hang, unless it stands where it stood when that was last told."""
        page = workers[member].page.look()
        if self._last_told.get(member) != (page.generation, page.step):
            self.alarm(workers)

    def close(self) -> None:
        if self._concluding is not None:
            self._concluding.cancel()

    def _conclude(self) -> None:
        asked, self._asked, self._concluding = self._asked, {}, None
        self._last_told = {member: (one.generation, one.step) for member, one in asked.items()}
        for line in grouped({one.rank: one.place() for one in asked.values()}):
            self.say(f"no progress: {line}")
        step = max(one.step for one in asked.values())
        path = self.folder / f"step-{step}-{self._number}.txt"

        def written(trouble: str | None) -> None:
            where = f"of all threads are in {path}" if trouble is None else f"could not be written: {trouble}"
            self.say(f"no progress: the stacks {where}")

        self.write(path, "\n".join(_page(member, one) for member, one in asked.items()), written)


def _page(member: MemberId, asked: _Asked) -> str:
    title = f"rank {asked.rank} ({member}), step {asked.step}: {asked.place()}"
    return full_text(title, asked.answer) if asked.answer is not None else title + "\n"
