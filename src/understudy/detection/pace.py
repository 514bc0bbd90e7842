"""How long a step takes, learnt from progress pages. Deadlines follow from it.

The typical recent step counts. One slow step (the machine stood still, a checkpoint) makes the pace longer, but not by
its whole length: otherwise hangs would be found late for many steps after it. Called by the agent.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from understudy.detection.progress import Place, Progress
from understudy.foundation.ids import MemberId
from understudy.protocol.events import PaceLearnt

_WINDOW = 50  # steps
_FIRST_STEPS = 2  # of each member: imports, compilation and allocation make them long
_OUTLIER = 5  # the slowest recent step counts for the pace with a fifth of its length
_NEWS = 1.1  # a pace that changed by this factor is told
_IN_STEPS = (Place.IN_STEP, Place.BETWEEN_STEPS, Place.FINISHED)


@dataclass(slots=True)
class _Seen:
    page: Progress
    steps: int = 0
    durations: "deque[float]" = field(default_factory=lambda: deque(maxlen=_WINDOW))


class PaceWatch:
    """Call `observe` often; it costs a few comparisons per member."""

    def __init__(self) -> None:
        self._seen: dict[MemberId, _Seen] = {}
        self._told = 0.0
        self._first_steps = 0.0  # stands in for the pace until that is learnt

    @property
    def pace(self) -> float:
        return self._told or self._first_steps

    def observe(self, now: float, pages: Mapping[MemberId, Progress]) -> tuple[PaceLearnt, ...]:
        for member in self._seen.keys() - pages.keys():
            del self._seen[member]
        moved = False
        for member, page in pages.items():
            moved |= self._look(member, page)
        return self._learn(now) if moved else ()

    def _look(self, member: MemberId, page: Progress) -> bool:
        seen = self._seen.get(member)
        if seen is None:
            self._seen[member] = _Seen(page)
            return False
        if page.count == seen.page.count:
            return False
        former, seen.page = seen.page, page
        if page.generation != former.generation or page.place not in _IN_STEPS:
            return True
        steps = page.step - max(0, former.step)
        if former.place is not Place.IN_STEP:
            if former.place in (Place.SETUP, Place.BETWEEN_STEPS) and steps > 0:  # whole steps between two looks
                self._first_steps = max(self._first_steps, max(0.0, page.at - former.at) / steps)
            return True
        if steps > 0 or page.place is not Place.IN_STEP:
            steps = max(1, steps)
            duration = max(0.0, page.at - former.at) / steps
            if seen.steps >= _FIRST_STEPS:
                seen.durations.append(duration)
            else:
                self._first_steps = max(self._first_steps, duration)
            seen.steps += steps
        return True

    def _learn(self, now: float) -> tuple[PaceLearnt, ...]:
        known = [seen.durations for seen in self._seen.values() if seen.durations]
        slowest = max(map(max, known), default=0.0)
        pace = max(max(map(median, known), default=0.0), slowest / _OUTLIER)
        if pace <= 0 or self._told / _NEWS < pace < self._told * _NEWS:
            return ()
        self._told = pace
        return (PaceLearnt(at=now, pace=pace),)
