"""Files that are read again: new ones count, what cannot be used is said once, a disk that hangs holds up nobody."""

import asyncio
import threading

from understudy.errors import SettingsError
from understudy.files.rereading import RereadingWatch


class Things:
    title, effect = "the things in --things", "they count"

    def __init__(self) -> None:
        self.present: object = "old"
        self.found: object = "old"
        self.trouble = ""
        self.answers = threading.Event()
        self.answers.set()
        self.readings = 0

    def read_again(self) -> bool:
        self.readings += 1
        self.answers.wait(20.0)
        if self.trouble:
            raise SettingsError(self.trouble)
        changed, self.present = self.present is not self.found, self.found
        return changed


def test_new_ones_are_told_and_trouble_is_warned_of_once() -> None:
    things, said, warned = Things(), list[str](), list[str]()
    watch = RereadingWatch(things, said.append, warned.append)

    def look() -> None:
        watch.read()
        watch.tell()

    look()
    assert not said and not warned
    things.found = "new"
    look()
    assert said == ["the things in --things are new ones; they count"]
    things.trouble = "--things f: its mode is 0644"
    look()
    assert not warned  # it may be just being replaced
    for _ in range(3):
        look()
    assert warned == ["--things f: its mode is 0644; those that were read before stay in use"]
    things.trouble, things.found = "", "newest"
    look()
    assert len(said) == 2 and len(warned) == 1 and things.present == "newest"


def test_a_disk_that_does_not_answer_is_asked_once() -> None:
    things, said = Things(), list[str]()
    things.found = "new"
    things.answers.clear()

    async def story() -> None:
        with RereadingWatch(things, said.append, look_every=0.01).looking():
            while not things.readings:
                await asyncio.sleep(0.01)
            for _ in range(20):
                await asyncio.sleep(0.01)
            assert things.readings == 1 and not said
            things.answers.set()
            while not said:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(story(), 20.0))
