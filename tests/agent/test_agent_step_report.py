"""Once a second at most, only news, and only of ranks that take part."""

from types import SimpleNamespace
from typing import Any

from understudy.agent.step_report import StepReport
from understudy.detection.progress import Place, Progress
from understudy.foundation.ids import MemberId

Page = tuple[int | None, int, int, Place]  # rank, generation, step, place


def look(report: StepReport, now: float, *pages: Page) -> tuple[int, int] | None:
    workers: dict[MemberId, Any] = {}
    shown: dict[MemberId, Progress] = {}
    for number, (rank, generation, step, place) in enumerate(pages):
        member = MemberId(f"m-{number}")
        workers[member] = SimpleNamespace(rank=rank)
        shown[member] = Progress(1, generation, step, now, place)
    return report.look(now, workers, shown)


def in_step(rank: int, step: int, generation: int = 1) -> Page:
    return rank, generation, step, Place.IN_STEP


def test_the_smallest_and_the_largest_step_once_a_second_and_only_when_they_changed() -> None:
    report = StepReport()
    assert look(report, 0.0, in_step(0, 5), in_step(1, 6)) == (5, 6)
    assert look(report, 0.9, in_step(0, 7), in_step(1, 7)) is None
    assert look(report, 1.1, in_step(0, 7), in_step(1, 7)) == (7, 7)
    assert look(report, 60.0, in_step(0, 7), in_step(1, 7)) is None
    assert look(report, 60.1, in_step(0, 7), in_step(1, 8)) == (7, 8)


def test_whoever_does_not_take_part_does_not_count() -> None:
    """A spare, a joiner before it has state, a rank that is benched, and a page that was read half written."""
    report = StepReport()
    assert look(report, 0.0, (None, 0, 3, Place.PARKED), (0, 1, -1, Place.SETUP)) is None
    benched = (2, 1, 40, Place.RECOVERING)
    garbage = (3, 2, 2**62, Place.IN_STEP)
    assert look(report, 0.0, in_step(0, 90, generation=2), (1, 2, -1, Place.RECOVERING), benched, garbage) == (90, 90)
