"""What an agent sees of members that make no progress, on a hand-moved clock. Nothing sleeps here."""

from collections.abc import Callable

import pytest

from understudy.detection.liveness import LivenessWatch
from understudy.detection.process_state import Kernel
from understudy.detection.progress import Place, Progress
from understudy.foundation.ids import MemberId
from understudy.protocol.events import ActivityObserved
from understudy.protocol.liveness import Condition, Sighting
from understudy.protocol.policy import Policy
from understudy.wire.messages import ActivityReport

LOOK = 0.25
Answer = Callable[[float], ActivityReport | None]


def answer(*, waiting: bool = False, stack: int = 1, cpu: float = 0.0, where: str = "in load") -> ActivityReport:
    return ActivityReport(number=0, waiting=waiting, where=where, stack=stack, cpu=cpu, control_thread=7)


class World:
    """Members whose pages a test writes, looked at four times a second. `answers`: what each says when it is asked."""

    def __init__(self, size: int = 2, place: Place = Place.IN_STEP) -> None:
        self.watch = LivenessWatch(Policy(world_size=size), LOOK)
        self.now = 100.0
        self.pages: dict[MemberId, Progress] = {}
        self.kernel: dict[MemberId, Kernel] = {}
        self.answers: dict[MemberId, Answer] = {}
        self.asked: list[MemberId] = []
        for number in range(size):
            self.answers[self.m(number)] = lambda _now: answer()
            self.show(number, 5, place)

    @staticmethod
    def m(number: int) -> MemberId:
        return MemberId(f"m-{number}")

    def show(self, number: int, step: int, place: Place, generation: int = 1) -> None:
        member = self.m(number)
        count = self.pages[member].count + 1 if member in self.pages else 1
        self.pages[member] = Progress(count, generation, step, self.now, place)

    def look(self) -> list[ActivityObserved]:
        look = self.watch.observe(self.now, self.pages, lambda m, _: self.kernel.get(m, Kernel("S")), pace=0.5)
        for member, _ in look.ask:
            self.asked.append(member)
            said = self.answers[member](self.now)
            if said is not None:
                self.watch.answered(self.now, member, said)
        return look.events

    def pass_time(self, seconds: float, keep_moving: tuple[int, ...] = ()) -> list[ActivityObserved]:
        events: list[ActivityObserved] = []
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += LOOK
            for number in keep_moving:
                self.show(number, 5, Place.IN_STEP)
            events += self.look()
        return events

    def last(self, events: list[ActivityObserved], number: int) -> Sighting:
        return next(seen for event in reversed(events) for seen in event.sightings if seen.member == self.m(number))


def test_members_that_move_are_asked_once_in_their_life_and_nothing_is_told() -> None:
    world = World()
    assert world.pass_time(600.0, keep_moving=(0, 1)) == []
    assert sorted(world.asked) == [world.m(0), world.m(1)], "so that their control threads are known"


@pytest.mark.parametrize(("traced", "condition"), [(False, Condition.STOPPED), (True, Condition.TRACED)])
def test_a_stopped_process_is_told_within_a_second(traced: bool, condition: Condition) -> None:
    world = World()
    world.pass_time(2.0, keep_moving=(0, 1))
    world.kernel[world.m(1)] = Kernel("T", traced=traced)
    world.answers[world.m(1)] = lambda _now: None
    events = world.pass_time(1.0, keep_moving=(0,))
    assert world.last(events, 1).condition is condition
    world.watch.watch_closely(world.now)
    events = world.pass_time(1.75, keep_moving=(0,))
    assert world.last(events, 1).seconds >= 1.5, "the machine acts after 2 s: found within 3 s in all"


def test_a_stop_is_counted_from_the_last_sign_of_life() -> None:
    world = World()
    world.pass_time(2.0, keep_moving=(0, 1))
    world.kernel[world.m(1)] = Kernel("T")
    world.answers[world.m(1)] = lambda _now: None
    events = world.pass_time(0.75, keep_moving=(0,))
    assert world.last(events, 1).seconds >= 0.5, "not from the first look at its process half a second later"


def test_what_a_member_did_before_it_was_stopped_does_not_count_as_stopped() -> None:
    world = World()
    world.pass_time(30.0, keep_moving=(0,))  # 1 is busy in its script, and runs
    world.kernel[world.m(1)] = Kernel("T")
    world.watch.watch_closely(world.now)
    events = world.pass_time(1.0, keep_moving=(0,))
    seen = world.last(events, 1)
    assert seen.condition is Condition.STOPPED and seen.seconds <= 1.0 + LOOK


def test_a_stop_that_has_been_too_long_is_told_at_once() -> None:
    """The protocol does not prolong what was seen. Without a word from the coordinator the intervals grow."""
    world = World()
    world.pass_time(2.0, keep_moving=(0, 1))
    world.kernel[world.m(1)] = Kernel("T")
    world.answers[world.m(1)] = lambda _now: None
    events = world.pass_time(2.75, keep_moving=(0,))
    told = [seen.seconds for event in events for seen in event.sightings if seen.member == world.m(1)]
    assert any(2.0 <= seconds <= 2.5 for seconds in told), told


@pytest.mark.parametrize("traced", [False, True])
def test_time_in_which_a_process_was_held_does_not_count_as_busy(traced: bool) -> None:
    world = World()
    world.pass_time(10.0, keep_moving=(0,))  # 1 is busy in its script
    world.kernel[world.m(1)] = Kernel("t" if traced else "T", traced=traced)
    said, world.answers[world.m(1)] = world.answers[world.m(1)], lambda _now: None
    events = world.pass_time(120.0, keep_moving=(0,))
    assert world.last(events, 1).seconds >= 100.0
    world.kernel[world.m(1)] = Kernel("R")
    world.answers[world.m(1)] = said
    world.watch.watch_closely(world.now)
    seen = world.last(world.pass_time(5.0, keep_moving=(0,)), 1)
    assert seen.condition is Condition.BUSY and 13.0 <= seen.seconds <= 16.0


def test_a_process_that_its_debugger_leaves_stopped_is_stopped_from_then_on() -> None:
    world = World()
    world.kernel[world.m(1)] = Kernel("t", traced=True)
    world.pass_time(60.0, keep_moving=(0,))
    world.kernel[world.m(1)] = Kernel("T")
    world.watch.watch_closely(world.now)
    seen = world.last(world.pass_time(1.0, keep_moving=(0,)), 1)
    assert seen.condition is Condition.STOPPED and seen.seconds <= 1.0 + LOOK


def test_a_control_thread_that_sleeps_although_it_was_asked_is_deaf() -> None:
    world = World()
    world.pass_time(2.0, keep_moving=(0, 1))
    world.answers[world.m(1)] = lambda _now: None
    events = world.pass_time(2.75, keep_moving=(0,))
    seen = world.last(events, 1)
    assert seen.condition is Condition.DEAF and seen.seconds >= 2.0


def test_whoever_gets_no_processor_is_not_deaf() -> None:
    world = World()
    world.pass_time(2.0, keep_moving=(0, 1))
    world.answers[world.m(1)] = lambda _now: None
    world.kernel[world.m(1)] = Kernel("R", starved=True)
    events = world.pass_time(30.0, keep_moving=(0,))
    assert all(seen.condition is not Condition.DEAF for event in events for seen in event.sightings)


def test_time_in_which_a_main_thread_waits_for_a_processor_does_not_count_as_deaf() -> None:
    """It may have the interpreter lock, without which the control thread sleeps."""
    world = World()
    world.pass_time(2.0, keep_moving=(0, 1))
    world.answers[world.m(1)] = lambda _now: None
    since = world.now

    def pass_time(seconds: float, share_in_queue: float) -> list[ActivityObserved]:
        events: list[ActivityObserved] = []
        end = world.now + seconds
        while world.now < end:
            before = world.kernel.get(world.m(1), Kernel("R", queued=50.0)).queued
            world.kernel[world.m(1)] = Kernel("R", queued=before + share_in_queue * LOOK)
            events += world.pass_time(LOOK, keep_moving=(0,))
        return events

    events = pass_time(10.0, share_in_queue=0.95)
    assert all(seen.condition is not Condition.DEAF for event in events for seen in event.sightings)
    seen = world.last(pass_time(3.0, share_in_queue=0.0), 1)
    assert seen.condition is Condition.DEAF and 2.5 <= seen.seconds <= 4.0 < world.now - since


def test_a_deaf_member_that_answers_again_is_told_at_once() -> None:
    world = World()
    world.answers[world.m(1)] = lambda _now: None
    world.pass_time(4.0, keep_moving=(0,))
    world.answers[world.m(1)] = lambda _now: answer()
    events = world.pass_time(1.5, keep_moving=(0,))
    assert world.last(events, 1).condition is Condition.BUSY


def test_busy_and_waiting_are_told_apart_and_told_after_half_the_deadline() -> None:
    world = World()
    world.answers[world.m(0)] = lambda _now: answer(waiting=True, where="in all_reduce")
    assert world.pass_time(4.5) == []
    events = world.pass_time(2.0)
    assert (world.last(events, 0).condition, world.last(events, 0).where) == (Condition.WAITING, "in all_reduce")
    assert world.last(events, 1).condition is Condition.BUSY and not world.last(events, 1).outside


def test_a_stack_and_a_cpu_time_that_stay_the_same_are_told_apart_from_work() -> None:
    world = World(3)
    world.answers[world.m(1)] = lambda now: answer(cpu=now)  # it computes
    world.answers[world.m(2)] = lambda now: answer(stack=int(now))  # its stack changes
    events = world.pass_time(30.0)
    assert world.last(events, 0).unchanged >= 20 and world.last(events, 1).unchanged == 0
    assert world.last(events, 2).unchanged == 0


def test_what_does_not_change_is_told_less_and_less_often_unless_somebody_asks() -> None:
    world = World()
    assert len(world.pass_time(600.0)) < 50
    world.watch.watch_closely(world.now)
    assert len(world.pass_time(4.0)) >= 4


def test_when_all_move_again_that_is_told_once() -> None:
    world = World()
    world.pass_time(20.0)
    events = world.pass_time(5.0, keep_moving=(0, 1))
    assert len(events) == 1
    assert all(seen.condition is Condition.MOVING for seen in events[0].sightings)


def test_time_in_which_the_watch_itself_did_not_run_counts_for_nobody() -> None:
    world = World()
    world.pass_time(2.0)
    world.now += 300.0  # the machine stood still
    events = world.look() + world.pass_time(1.0)
    assert all(seen.seconds < 10 for event in events for seen in event.sightings)


def test_between_steps_and_in_a_setup_silence_is_told_later() -> None:
    for place, earliest in ((Place.BETWEEN_STEPS, 10.0), (Place.SETUP, 30.0)):
        world = World(place=place)
        assert world.pass_time(earliest - 0.75) == []
        events = world.pass_time(2.0)
        assert world.last(events, 0).outside


def test_idle_spares_and_released_ranks_are_not_asked() -> None:
    world = World(place=Place.PARKED)
    assert world.pass_time(60.0) == [] and world.asked == []
    world = World(place=Place.RELEASED)
    assert world.pass_time(600.0) == [] and world.asked == []


def test_a_stopped_spare_is_seen() -> None:
    world = World(place=Place.PARKED)
    world.kernel[world.m(1)] = Kernel("T")
    events = world.pass_time(12.0)
    seen = world.last(events, 1)
    assert seen.condition is Condition.STOPPED and seen.seconds > 5


def test_asking_again_to_be_released_is_no_progress() -> None:
    world = World(place=Place.FINISHED)
    events: list[ActivityObserved] = []
    for _ in range(20):
        for number in range(2):
            world.show(number, 5, Place.FINISHED)
        events += world.pass_time(1.0)
    assert world.last(events, 0).seconds > 10
