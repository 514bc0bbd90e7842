"""Which steps the ranks of this host have committed, read from their progress pages, for display.

At most once a second, and only when it changed: a coordinator of thousands of hosts hears this from all of them.
"""

from collections.abc import Mapping

from understudy.agent.members import Worker, step_of
from understudy.detection.progress import Progress
from understudy.foundation.ids import MemberId
from understudy.wire.host_messages import LARGEST_STEP

_EVERY = 1.0  # seconds between two reports


class StepReport:
    def __init__(self) -> None:
        self._told: tuple[int, int] | None = None
        self._told_at = float("-inf")

    def look(
        self, now: float, workers: Mapping[MemberId, Worker], pages: Mapping[MemberId, Progress]
    ) -> tuple[int, int] | None:
        """The smallest and the largest step, if they are news. A rank that is benched stays in the generation in which
        its replica was left out, so only ranks of the newest generation count."""
        if now - self._told_at < _EVERY:
            return None
        stepping = [page for id_, page in pages.items() if workers[id_].rank is not None and _is_sound(page)]
        newest = max((page.generation for page in stepping), default=0)
        steps = [page.step for page in stepping if page.generation == newest]
        found = (min(steps), max(steps)) if steps else None
        if found is None or found == self._told:
            return None
        self._told, self._told_at = found, now
        return found


def _is_sound(page: Progress) -> bool:
    """A page that was read while it was being written may say anything."""
    step = step_of(page)
    return step is not None and step <= LARGEST_STEP
