"""Where the time of a job goes, event by event, with a machine that is played by hand."""

import pytest
from msgspec import structs
from tests.protocol.test_job_stories import holding, lost, prepared, reported, resumed, training

from understudy.coordinator.goodput_clock import GoodputClock
from understudy.coordinator.steps import HostSteps
from understudy.foundation.clock import SetClock
from understudy.foundation.ids import HostId
from understudy.protocol import events as ev
from understudy.protocol.commands import Command
from understudy.protocol.job import JobMachine


class Played:
    """A machine of two ranks that train, and the clock beside it."""

    def __init__(self, machine: JobMachine | None = None) -> None:
        self.machine, self.clock = machine or training(), GoodputClock()
        self.time = SetClock()
        self.steps = HostSteps(self.time)

    def handle(self, event: ev.Event) -> tuple[Command, ...]:
        self.time.advance_to(event.at)
        self.clock.before(event, self.machine, self.steps)
        commands = self.machine.handle(event)
        for command in commands:
            self.clock.on_command(command)
        return commands

    def commits(self, at: float, step: int) -> None:
        self.time.advance_to(at)
        self.steps.told(HostId("this host"), step, step)


def recover(played: Played, step: int, *, at: float = 30.0) -> None:
    """Rank 1 is lost at 30; the world goes on 4 s later at `step`, by then all hold it."""
    played.handle(lost(1, at=at))
    for event in (prepared(2, 2), reported(0, 2, holding(step)), resumed(0, 2), resumed(2, 2)):
        played.handle(structs.replace(event, at=at + 4.0))


def test_setup_ends_with_the_first_commit() -> None:
    played = Played(JobMachine(training().policy))
    played.handle(ev.JobStarted(at=10.0))
    played.handle(ev.Tick(at=25.0))
    assert played.clock.account.setup == 15.0 and played.clock.account.productive == 0.0


def test_training_counts_and_a_recovery_does_not() -> None:
    played = Played()
    played.handle(ev.Tick(at=10.0))
    played.commits(29.0, 9)
    recover(played, 10)
    played.handle(ev.Tick(at=50.0))
    account = played.clock.account
    assert account.recovering == {"signalled": 4.0}
    assert account.productive + account.repeated == pytest.approx(36.0) and account.total == pytest.approx(40.0)
    assert played.clock.at(60.0, played.machine).productive == pytest.approx(account.productive + 10.0)


def test_a_step_that_runs_again_is_taken_off_from_its_beginning() -> None:
    played = Played()
    played.handle(ev.Tick(at=10.0))
    played.commits(28.5, 5)
    recover(played, 5)
    assert played.clock.account.repeated == pytest.approx(1.5), "since the last commit that all had"
    assert played.clock.account.steps == 5


def test_nothing_is_repeated_where_the_step_counts() -> None:
    played = Played()
    played.handle(ev.PaceLearnt(at=10.0, pace=2.0))
    played.commits(28.5, 5)
    recover(played, 6)
    assert played.clock.account.repeated == 0.0


def test_a_successor_goes_on_with_what_was_kept() -> None:
    played = Played()
    played.handle(ev.Tick(at=10.0))
    played.handle(ev.Tick(at=20.0))
    successor = GoodputClock(account=played.clock.account)
    successor.before(ev.Tick(at=500.0), played.machine, played.steps)
    successor.before(ev.Tick(at=505.0), played.machine, played.steps)
    assert successor.account.productive == 15.0, "the time in which nobody led is not known"
