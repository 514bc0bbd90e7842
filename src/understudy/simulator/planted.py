"""A commit rule with a bug, to show that the simulation and the explorer would find one.

Knows how to put another rule in the place of the real one for a while. Nothing else uses it.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from understudy.foundation.ids import Rank
from understudy.protocol import planning
from understudy.protocol.commit import Verdict
from understudy.protocol.positions import Position
from understudy.simulator.explorer import explore
from understudy.simulator.invariants import Violation
from understudy.simulator.scenarios import play
from understudy.simulator.script import Script


def retry_although_applied(positions: Mapping[Rank, Position]) -> Verdict | None:
    """The planted bug: it goes back to the oldest survivor, so a step that another has applied is lost."""
    held = [position.holds for position in positions.values() if position.holds is not None]
    if not held:
        return None
    return Verdict(step=min(held), committed=None, reason="planted: everybody goes back to the oldest state")


@contextmanager
def planted_bug() -> Iterator[None]:
    """While this lasts, every machine judges by the wrong rule."""
    rules = vars(planning)
    right = rules["judge"]
    rules["judge"] = retry_although_applied
    try:
        yield
    finally:
        rules["judge"] = right


def found_by_simulation(seeds: Iterable[int] = range(2000)) -> Violation | None:
    """The first violation that seeded runs find under the wrong rule."""
    with planted_bug():
        for seed in seeds:
            try:
                play(seed)
            except Violation as violation:
                return violation
    return None


def found_by_explorer(fenced: bool) -> Violation | None:
    with planted_bug():
        try:
            explore(Script(world_size=3, steps=2, fenced=fenced), faults=1)
        except Violation as violation:
            return violation
    return None
