"""Stalls on a hand-moved clock. Nothing sleeps here."""

import pytest

from understudy.detection.progress import Place, Progress
from understudy.detection.stall import StallWatch
from understudy.foundation.ids import MemberId
from understudy.protocol.events import Event, PaceLearnt, ProgressStalled
from understudy.protocol.policy import Policy

LOOK = 0.1


class World:
    """Members whose pages a test writes, looked at every 100 ms."""

    def __init__(self, size: int = 2, *, floor: float = 10.0, factor: float = 10.0, outside: float = 300.0) -> None:
        policy = Policy(world_size=size, stall_floor=floor, stall_factor=factor)
        self.watch = StallWatch(policy, outside_floor=outside, patience_for=600.0)
        self.now = 100.0
        self.pages: dict[MemberId, Progress] = {}
        self.states: dict[MemberId, str] = {}
        self.asked = 0
        for number in range(size):
            self.show(number, 0, Place.SETUP)

    def show(self, number: int, step: int, place: Place, generation: int = 1) -> None:
        member = MemberId(f"m-{number}")
        count = self.pages[member].count + 1 if member in self.pages else 1
        self.pages[member] = Progress(count, generation, step, self.now, place)

    def _state_of(self, member: MemberId) -> str:
        self.asked += 1
        return self.states.get(member, "S")

    def pass_time(self, seconds: float) -> list[Event]:
        events: list[Event] = []
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += LOOK
            events += self.watch.observe(self.now, self.pages, self._state_of)
        return events

    def train(self, steps: range, duration: float = 0.5, generation: int = 1) -> list[Event]:
        """All members run these steps; they are then inside the step after the last one."""
        events: list[Event] = []
        for step in steps:
            for number in range(len(self.pages)):
                self.show(number, step, Place.IN_STEP, generation)
            events += self.pass_time(duration)
        for number in range(len(self.pages)):
            self.show(number, steps.stop, Place.IN_STEP, generation)
        return events + self.pass_time(LOOK)


def stalls(events: list[Event]) -> list[ProgressStalled]:
    return [event for event in events if isinstance(event, ProgressStalled)]


def test_a_training_world_is_never_called_stalled_and_its_pace_is_learnt() -> None:
    world = World()
    events = world.train(range(20), duration=0.5)
    assert stalls(events) == []
    learnt = [event for event in events if isinstance(event, PaceLearnt)]
    assert len(learnt) == 1 and abs(learnt[0].pace - 0.5) < 0.11


def test_silence_of_all_ranks_is_a_stall_after_the_floor() -> None:
    world = World()
    world.train(range(5))
    assert stalls(world.pass_time(9.8)) == []
    (stall,) = stalls(world.pass_time(0.4))
    assert stall.stopped == () and "in step 5" in stall.evidence


@pytest.mark.parametrize("place", [Place.SETUP, Place.BETWEEN_STEPS], ids=lambda place: place.name)
def test_a_world_whose_first_steps_fell_between_two_looks_is_watched_too(place: Place) -> None:
    """Once it counted as a world in its first step for ever, and a hang right after was never seen."""
    world = World()
    for number in range(2):
        world.show(number, 0 if place is Place.SETUP else 1, place)
    world.pass_time(0.3)
    for number in range(2):
        world.show(number, 6, Place.IN_STEP)
    assert stalls(world.pass_time(9.8)) == []
    (stall,) = stalls(world.pass_time(0.5))
    assert "in step 6" in stall.evidence


def test_what_a_setup_took_makes_the_first_deadline_longer_not_shorter() -> None:
    world = World()
    world.pass_time(12.0)
    for number in range(2):
        world.show(number, 6, Place.IN_STEP)  # at most two seconds per step, so a deadline of at most twenty
    assert stalls(world.pass_time(19.5)) == []
    assert len(stalls(world.pass_time(1.0))) == 1


def test_the_deadline_grows_with_the_pace_of_recent_steps() -> None:
    world = World()
    world.train(range(6), duration=3.0)
    assert stalls(world.pass_time(29.0)) == []
    assert len(stalls(world.pass_time(2.0))) == 1


def test_one_slow_step_makes_the_deadline_longer_but_not_by_the_whole_factor() -> None:
    """Once a machine that stood still for five seconds made every hang of the next fifty steps cost fifty."""
    world = World(floor=2.0)
    world.train(range(20), duration=0.2)
    assert world.watch.deadline() < 3.1
    world.train(range(20, 21), duration=5.0)
    assert 9.0 < world.watch.deadline() < 11.0


def test_the_first_two_steps_of_a_member_are_no_part_of_its_pace() -> None:
    world = World()
    assert world.train(range(2), duration=60.0) == []
    world.train(range(2, 6), duration=0.5)
    assert world.watch.deadline() == 10.0


def test_until_the_pace_is_learnt_the_first_steps_stand_in_for_it() -> None:
    world = World()
    world.train(range(1), duration=12.0)
    assert stalls(world.pass_time(100.0)) == [], "a world of slow steps gets time for its second one"
    assert len(stalls(world.pass_time(30.0))) == 1


def test_old_slow_steps_are_forgotten() -> None:
    world = World()
    world.train(range(4), duration=5.0)
    assert world.watch.deadline() > 40
    world.train(range(4, 60), duration=0.2)
    assert world.watch.deadline() == 10.0


def test_the_first_step_of_a_world_is_not_judged() -> None:
    world = World()
    for number in range(2):
        world.show(number, 0, Place.IN_STEP)
    assert world.pass_time(1000) == []


def test_a_joiner_that_hangs_in_its_first_step_is_judged_because_the_world_is_not_new() -> None:
    world = World()
    world.train(range(5))
    del world.pages[MemberId("m-1")]
    world.show(2, 5, Place.IN_STEP, generation=2)
    world.show(0, 5, Place.IN_STEP, generation=2)
    assert len(stalls(world.pass_time(10.5))) == 1


def test_a_rank_between_steps_has_its_own_longer_limit() -> None:
    world = World(outside=60.0)
    world.train(range(5))
    world.show(0, 6, Place.BETWEEN_STEPS)
    assert stalls(world.pass_time(59.0)) == []
    assert len(stalls(world.pass_time(2.0))) == 1


def test_setup_and_recovery_are_not_judged() -> None:
    for place in (Place.SETUP, Place.RECOVERING):
        world = World()
        world.train(range(5))
        world.show(1, 5, place)
        assert stalls(world.pass_time(1000)) == []


def test_one_silent_rank_is_no_stall_while_another_moves_but_it_is_once_the_other_has_finished() -> None:
    world = World()
    world.train(range(3))
    for step in range(3, 40):
        world.show(0, step, Place.IN_STEP)
        assert stalls(world.pass_time(1.0)) == []
    events: list[Event] = []
    for _ in range(12):  # who has finished asks again every second
        world.show(0, 40, Place.FINISHED)
        events += world.pass_time(1.0)
    assert len(stalls(events)) == 1


def test_who_was_released_may_take_its_time() -> None:
    """Saving, a last evaluation, or a machine too busy to end processes: once that was called a hang."""
    world = World()
    world.train(range(5))
    for place in (Place.FINISHED, Place.RELEASED):
        world.show(0, 6, place)
        world.show(1, 6, place)
        world.pass_time(LOOK)
    assert not world.watch.nearly_stalled(world.now + 1000)
    assert stalls(world.pass_time(1000)) == []


def test_a_stopped_process_is_named_whatever_the_others_do() -> None:
    world = World()
    world.train(range(5))
    world.states[MemberId("m-1")] = "T"
    events: list[Event] = []
    for step in range(6, 17):
        world.show(0, step, Place.IN_STEP)
        events += world.pass_time(1.0)
    (stall,) = stalls(events)
    assert stall.stopped == (MemberId("m-1"),)


def test_a_stopped_process_is_named_in_setup_too_and_only_after_the_whole_deadline() -> None:
    world = World()
    world.states[MemberId("m-0")] = "T"
    assert stalls(world.pass_time(9.0)) == []
    (stall,) = stalls(world.pass_time(7.0))
    assert stall.stopped == (MemberId("m-0"),)


def test_the_kernel_is_not_asked_about_ranks_that_move() -> None:
    world = World()
    world.train(range(20), duration=0.5)
    assert world.asked == 0


def test_an_alarm_is_not_repeated_at_every_look() -> None:
    world = World()
    world.train(range(5))
    assert len(stalls(world.pass_time(19.0))) == 1


def test_after_a_false_alarm_the_deadline_doubles_for_a_while() -> None:
    world = World()
    world.train(range(5))
    assert len(stalls(world.pass_time(10.5))) == 1
    world.train(range(5, 8), generation=2)  # all the same members went on
    assert world.watch.deadline() == 20.0
    assert stalls(world.pass_time(19.0)) == []
    world.train(range(8, 12), duration=0.5, generation=2)
    for step in range(12, 700):
        world.train(range(step, step + 1), duration=1.0, generation=2)
    assert world.watch.deadline() < 20.0


def test_after_an_alarm_that_found_a_culprit_the_deadline_stays() -> None:
    world = World()
    world.train(range(5))
    assert len(stalls(world.pass_time(10.5))) == 1
    del world.pages[MemberId("m-1")]
    world.show(0, 5, Place.IN_STEP, generation=2)
    world.show(2, 5, Place.IN_STEP, generation=2)
    world.pass_time(1.0)
    assert world.watch.deadline() == 10.0
