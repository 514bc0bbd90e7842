"""The pace of steps, from made-up pages on a hand-moved clock."""

from understudy.detection.pace import PaceWatch
from understudy.detection.progress import Place, Progress
from understudy.foundation.ids import MemberId
from understudy.protocol.events import PaceLearnt

LOOK = 0.1


class World:
    def __init__(self, size: int = 2) -> None:
        self.watch, self.now, self.size = PaceWatch(), 100.0, size
        self.pages = {MemberId(f"m-{n}"): Progress(1, 1, -1, self.now, Place.SETUP) for n in range(size)}
        self.learnt: list[PaceLearnt] = []

    def show(self, step: int, place: Place, generation: int = 1) -> None:
        self.pages = {
            member: Progress(page.count + 1, generation, step, self.now, place) for member, page in self.pages.items()
        }

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += LOOK
            self.learnt += self.watch.observe(self.now, self.pages)

    def train(self, steps: range, duration: float) -> None:
        for step in steps:
            self.show(step, Place.IN_STEP)
            self.pass_time(duration)


def test_the_pace_is_learnt_and_told_once() -> None:
    world = World()
    world.train(range(20), 0.5)
    assert len(world.learnt) == 1 and abs(world.learnt[0].pace - 0.5) < 0.11


def test_the_first_steps_stand_in_for_it_until_it_is_known() -> None:
    world = World()
    world.train(range(2), 8.0)
    assert world.learnt == [] and abs(world.watch.pace - 8.0) < 0.2


def test_one_slow_step_makes_it_longer_by_a_fifth_of_its_length() -> None:
    world = World()
    world.train(range(20), 0.5)
    world.train(range(20, 21), 20.0)
    world.train(range(21, 30), 0.5)
    assert abs(world.watch.pace - 4.0) < 0.2


def test_whole_steps_between_two_looks_count_as_well() -> None:
    world = World()
    world.pass_time(1.0)
    world.show(40, Place.BETWEEN_STEPS)
    world.pass_time(1.0)
    assert 0 < world.watch.pace < 0.1


def test_time_in_recoveries_is_no_pace() -> None:
    world = World()
    world.train(range(10), 0.5)
    world.show(10, Place.RECOVERING, generation=2)
    world.pass_time(30.0)
    world.show(10, Place.IN_STEP, generation=2)
    world.pass_time(0.5)
    assert world.watch.pace < 1.0
