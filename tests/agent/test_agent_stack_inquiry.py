"""Asking for stacks: before the alarm, without waiting, and with a word for those who cannot answer."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from understudy.agent import stack_inquiry
from understudy.agent.members import Worker
from understudy.agent.stack_inquiry import StackInquiry
from understudy.detection.progress import Place, ProgressReader, ProgressWriter
from understudy.foundation.ids import MemberId
from understudy.wire.messages import AskStacks, Frame, Stacks, ThreadStack


class Scene:
    """Three ranks and a spare, of which a test says who answers what."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.sent: list[tuple[MemberId, AskStacks]] = []
        self.states: dict[MemberId, str] = {}
        self.workers: dict[MemberId, Worker] = {}
        for number in range(4):
            path = str(folder / f"m-{number}.progress")
            reader = ProgressReader(path)
            ProgressWriter(path).show(1, 7, Place.IN_STEP)
            member = MemberId(f"m-{number}")
            self.workers[member] = Worker(member, reader, (), rank=number if number < 3 else None)
        self.inquiry = StackInquiry(folder / "stacks", self._send, self.said.append, self._state_of, self._write)

    @staticmethod
    def _write(path: Path, text: str, then: Callable[[str | None], None]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            then(error.strerror)
        else:
            then(None)

    def _send(self, member: MemberId, message: AskStacks) -> bool:
        self.sent.append((member, message))
        return True

    def _state_of(self, member: MemberId) -> str:
        return self.states.get(member, "S")

    def answer(self, number: int, function: str, to: int | None = None) -> None:
        frames = [Frame(file="/home/u/train.py", line=41, function=function)]
        asked = self.sent[-1][1].number if to is None else to
        threads = [ThreadStack(name="MainThread", frames=frames)]
        self.inquiry.answered(MemberId(f"m-{number}"), Stacks(number=asked, threads=threads))


def play(story: Callable[[], None], seconds: float = 0.05) -> None:
    async def run() -> None:
        story()
        await asyncio.sleep(seconds)

    asyncio.run(run())


def test_answers_that_are_there_when_the_alarm_comes_are_told_at_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    def story() -> None:
        scene.inquiry.ask(scene.workers)
        scene.inquiry.ask(scene.workers)  # every look of the same silence
        for number, function in enumerate(("load", "load", "spin")):
            scene.answer(number, function)
        scene.inquiry.alarm(scene.workers)

    play(story)
    assert [member for member, _ in scene.sent] == ["m-0", "m-1", "m-2"], "once, and no spare"
    path = tmp_path / "stacks" / "step-7-1.txt"
    assert scene.said == [
        "no progress: ranks 0-1: in load at train.py:41",
        "no progress: rank 2: in spin at train.py:41",
        f"no progress: the stacks of all threads are in {path}",
    ]
    assert 'File "/home/u/train.py", line 41, in spin' in path.read_text()


def test_who_cannot_answer_is_named_and_nobody_waits_longer_than_a_moment(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.states[MemberId("m-1")] = "T"

    def story() -> None:
        scene.inquiry.alarm(scene.workers)  # nobody was asked before
        scene.answer(0, "load")
        assert scene.said == []

    play(story, stack_inquiry._LAST_ANSWERS + 0.1)
    assert scene.said[1].startswith("no progress: rank 1: stopped (by a signal or a debugger)")
    assert scene.said[2].startswith("no progress: rank 2: did not answer")


def test_a_world_that_moves_again_is_asked_anew_next_time_and_late_answers_do_not_count(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    def story() -> None:
        scene.inquiry.ask(scene.workers)
        scene.inquiry.forget()
        scene.inquiry.ask(scene.workers)
        scene.answer(0, "old", to=1)
        for number in range(3):
            scene.answer(number, "new")
        scene.inquiry.alarm(scene.workers)
        scene.inquiry.forget()  # the look after the alarm

    play(story)
    assert len(scene.sent) == 6 and scene.said[0] == "no progress: ranks 0-2: in new at train.py:41"


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    (tmp_path / "stacks").write_text("in the way")
    play(lambda: scene.inquiry.alarm(scene.workers), stack_inquiry._LAST_ANSWERS + 0.1)
    assert "could not be written" in scene.said[-1]


def test_a_member_that_still_stands_where_it_stood_is_not_told_of_again_when_it_is_ended(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def story() -> None:
        member = MemberId("m-1")
        scene.inquiry.alarm_about(member, scene.workers)
        for number in range(3):
            scene.answer(number, "load")
        await asyncio.sleep(2 * stack_inquiry._LAST_ANSWERS)
        scene.inquiry.forget()  # the others went into a recovery
        before = list(scene.said)
        scene.inquiry.alarm_about(member, scene.workers)
        await asyncio.sleep(2 * stack_inquiry._LAST_ANSWERS)
        assert before and scene.said == before
        ProgressWriter(str(tmp_path / "m-1.progress")).show(2, 7, Place.IN_STEP)  # the same step, after a recovery
        scene.inquiry.alarm_about(member, scene.workers)
        await asyncio.sleep(2 * stack_inquiry._LAST_ANSWERS)
        assert len(scene.said) > len(before)

    asyncio.run(story())


def test_a_silence_that_was_told_when_a_member_was_ended_is_not_told_again_while_others_wait(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def story() -> None:
        scene.inquiry.alarm_about(MemberId("m-1"), scene.workers)
        for number in range(3):
            scene.answer(number, "load")
        await asyncio.sleep(2 * stack_inquiry._LAST_ANSWERS)
        before = list(scene.said)
        scene.inquiry.alarm_once(scene.workers)  # the survivors are not free yet, and the deadline of a stall passes
        await asyncio.sleep(2 * stack_inquiry._LAST_ANSWERS)
        assert before and scene.said == before
        scene.inquiry.forget()
        scene.inquiry.alarm_once(scene.workers)
        await asyncio.sleep(2 * stack_inquiry._LAST_ANSWERS)
        assert len(scene.said) > len(before)

    asyncio.run(story())
