"""Posts of coordinators in a folder: who comes first holds one, and a holder that went is followed."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from understudy.agent import coordinator_beside
from understudy.agent.coordinator_beside import CoordinatorBeside
from understudy.agent.posts import posts_in

SLEEPS = (sys.executable, "-c", "import time; time.sleep(100)")


def test_a_post_is_held_by_the_first_that_takes_it(tmp_path: Path) -> None:
    (post,) = posts_in(tmp_path, 1)
    assert post.look() == (0, None)
    assert post.take(0, "a", "one") and not post.take(0, "b", "two")
    number, holder = post.look()
    assert number == 1 and holder is not None and (holder.host, holder.agent) == ("a", "one")
    before = post.heartbeat(holder)
    post.beat("one", 1)
    assert post.heartbeat(holder) != before
    assert post.take(1, "b", "two"), "when it is thought to be dead"
    post.give_up("one")
    assert post.look()[0] == 2, "it is not its own any more"
    post.give_up("two")
    assert post.look() == (3, None)


def test_a_damaged_post_is_free(tmp_path: Path) -> None:
    (post,) = posts_in(tmp_path, 1)
    post.take(0, "a", "one")
    next(path for path in post.folder.iterdir() if path.name.isdecimal()).write_bytes(b"?")
    assert post.look() == (1, None) and post.take(1, "b", "two")


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, list[str]()
        self.made: list[CoordinatorBeside] = []

    def beside(
        self, host: str, *, count: int = 1, command: Sequence[str] = SLEEPS, eager: bool = True
    ) -> CoordinatorBeside:
        made = CoordinatorBeside(
            posts_in(self.folder, count), command, {}, host=host, eager=eager, say=self.said.append
        )
        self.made.append(made)
        made.start()
        return made

    def play(self, story: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            try:
                async with asyncio.timeout(60.0):
                    await story()
            finally:
                for made in self.made:
                    await made.close(leaves=True, hurried=lambda: True)

        asyncio.run(whole())


async def until(true: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(coordinator_beside, "_BEAT_EVERY", 0.05)
    monkeypatch.setattr(coordinator_beside, "_LOOK_EVERY", (0.05, 0.05))
    monkeypatch.setattr(coordinator_beside, "_DEAD_AFTER", 1000.0)
    monkeypatch.setattr(coordinator_beside, "_FIRST_DELAY", 0.05)
    return Scene(tmp_path)


def test_the_first_hosts_run_a_coordinator_each(scene: Scene) -> None:
    async def story() -> None:
        first = scene.beside("a", count=2)
        await until(lambda: first.process is not None)
        second = scene.beside("b", count=2)
        await until(lambda: second.process is not None)
        third = scene.beside("c", count=2)
        await asyncio.sleep(0.5)
        assert third.process is None
        await first.close(leaves=True, hurried=lambda: False)
        assert first.process is not None and not first.process.alive
        await until(lambda: third.process is not None)

    scene.play(story)


def test_a_host_that_is_silent_is_followed_and_ends_its_coordinator(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_beside, "_DEAD_AFTER", 1.0)

    async def story() -> None:
        first = scene.beside("a")
        await until(lambda: first.process is not None and first.process.alive)
        assert first._task is not None and first._post is not None
        while not first._task.done():  # a task that has just got its answer may not hear of it the first time
            first._task.cancel()  # as if it were stopped
            await asyncio.sleep(0.01)
        second = scene.beside("b")
        await until(lambda: second.process is not None)
        first._task = asyncio.create_task(first._keep())
        await until(lambda: first.process is not None and not first.process.alive)
        assert "another host has taken the post of this host's coordinator, which ends" in scene.said

    scene.play(story)


def test_an_agent_that_was_started_again_takes_its_hosts_post_back_at_once(scene: Scene) -> None:
    async def story() -> None:
        posts_in(scene.folder, 1)[0].take(0, "a", "killed")
        stranger = scene.beside("b")
        await asyncio.sleep(0.3)
        assert stranger.process is None
        again = scene.beside("a")
        await until(lambda: again.process is not None)

    scene.play(story)


def test_spare_hosts_wait_for_others(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_beside, "_SPARES_WAIT", 0.5)

    async def story() -> None:
        began = time.monotonic()
        spare = scene.beside("spare", eager=False)
        await until(lambda: spare.process is not None)
        assert time.monotonic() - began >= 0.5

    scene.play(story)


def test_a_coordinator_that_ends_is_started_again_unless_its_flags_are_wrong(scene: Scene) -> None:
    async def story() -> None:
        ended = scene.beside("a", command=(sys.executable, "-c", "raise SystemExit(7)"))
        await until(lambda: sum("ended with code 7" in text for text in scene.said) >= 2)
        await ended.close(leaves=True, hurried=lambda: True)
        wrong = scene.beside("b", command=(sys.executable, "-c", "raise SystemExit(2)"))
        await until(lambda: any("cannot run a coordinator" in text for text in scene.said))
        assert wrong._unfit

    scene.play(story)


def test_at_the_end_of_the_job_the_coordinator_is_waited_for(scene: Scene) -> None:
    async def story() -> None:
        ends = scene.beside("a", command=(sys.executable, "-c", "import time; time.sleep(1.5)"))
        await until(lambda: ends.process is not None)
        began = time.monotonic()
        await ends.close(leaves=False, hurried=lambda: False)
        assert time.monotonic() - began > 0.3 and ends.process is not None and not ends.process.alive
        assert posts_in(scene.folder, 1)[0].look()[1] is None, "the next run need not wait for it"

    scene.play(story)
