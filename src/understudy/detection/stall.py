"""When a world has been silent for too long.

Knows: what the progress pages said at each look. Does not know: processes, files, clocks. A stall is evidence; what
follows from it is decided by `protocol`.

- A rank is silent while its page does not change. The world is stalled when *every* rank has been silent for longer
  than its own limit: a learnt deadline inside steps, a longer one in the user's code between steps.
- Ranks that set up or recover are not judged, nor those that were released (a script may save or evaluate for long
  after its last step), and nobody is before the world has its first step behind it. The protocol has its own deadlines
  for recoveries.
- A process that has been stopped (state T) for the deadline is named at once, whatever the others do.
- The deadline follows the typical step. One slow step (the machine stood still, a checkpoint) makes it longer, but not
  by the whole factor: hangs would be found late for many steps after it.
- Who cried wolf gets more patient: after an alarm from which all the same members went on, the deadline doubles for a
  while.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from understudy.detection.process_state import is_stopped
from understudy.detection.progress import Place, Progress
from understudy.foundation.ids import MemberId
from understudy.protocol.events import Event, PaceLearnt, ProgressStalled
from understudy.protocol.policy import Policy

_WINDOW = 50  # steps
_FIRST_STEPS = 2  # of each member: imports, compilation and allocation make them long
_MOST_PATIENCE = 16
_STATE_EVERY = 1.0  # seconds between two questions to the kernel about the same process
_OUTLIER = 5  # the slowest recent step counts for the pace with a fifth of its length
_NEWS = 1.1  # a pace that changed by this factor is told
_NEARLY = 0.8  # of the deadline

_JUDGED = (Place.IN_STEP, Place.BETWEEN_STEPS, Place.FINISHED)
_BUSY_OTHERWISE = (Place.SETUP, Place.RECOVERING)


@dataclass(slots=True)
class _Seen:
    """One member: its last page and since when that has not changed."""

    page: Progress
    since: float
    steps: int = 0
    durations: "deque[float]" = field(default_factory=lambda: deque(maxlen=_WINDOW))
    asked_at: float = float("-inf")
    stopped_since: float | None = None


@dataclass(slots=True)
class _Alarm:
    at: float
    members: frozenset[MemberId]
    generation: int


class StallWatch:
    """Call `observe` often; it costs a few comparisons per member."""

    def __init__(self, policy: Policy, *, outside_floor: float = 300.0, patience_for: float = 600.0) -> None:
        self._policy = policy
        self._outside_floor, self._patience_for = outside_floor, patience_for
        self._seen: dict[MemberId, _Seen] = {}
        self._told_pace = 0.0
        self._slowest = 0.0
        self._first_steps = 0.0  # stands in for the pace until that is learnt
        self._alarm: _Alarm | None = None
        self._quiet_until = float("-inf")
        self._patience = 1
        self._patient_until = float("-inf")

    def deadline(self) -> float:
        return self._patience * self._policy.stall_deadline(self._told_pace or self._first_steps)

    def observe(
        self, now: float, pages: Mapping[MemberId, Progress], state_of: Callable[[MemberId], str]
    ) -> tuple[Event, ...]:
        """`state_of` is asked only about members that have been silent for half the deadline."""
        for member in self._seen.keys() - pages.keys():
            del self._seen[member]
        moved = False
        for member, page in pages.items():
            moved |= self._look(now, member, page)
        events: list[Event] = [*self._learn(now)] if moved else []
        self._look_back(now)
        stall = self._judge(now, state_of)
        return (*events, stall) if stall is not None else tuple(events)

    def nearly_stalled(self, now: float) -> bool:
        """The world has been silent for most of its deadline: time to ask what it is doing, before the alarm."""
        return now >= self._quiet_until and self._all_silent(now, self.deadline(), _NEARLY)

    # -- learning -----------------------------------------------------------------------------------------------------

    def _look(self, now: float, member: MemberId, page: Progress) -> bool:
        seen = self._seen.get(member)
        if seen is None:
            self._seen[member] = _Seen(page, now)
            return False
        if page.count == seen.page.count or _only_waits(seen.page, page):
            return False
        former, seen.page, seen.since, seen.stopped_since = seen.page, page, now, None
        if page.generation != former.generation or page.place not in _JUDGED:
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

    def _learn(self, now: float) -> tuple[Event, ...]:
        known = [seen.durations for seen in self._seen.values() if seen.durations]
        self._slowest = max(map(max, known), default=0.0)
        pace = max(max(map(median, known), default=0.0), self._slowest / _OUTLIER)
        if pace <= 0 or self._told_pace / _NEWS < pace < self._told_pace * _NEWS:
            return ()
        self._told_pace = pace
        return (PaceLearnt(at=now, pace=pace),)

    def _look_back(self, now: float) -> None:
        """Was the last alarm a false one? Did patience run out?"""
        if self._patience > 1 and now >= self._patient_until:
            self._patience = 1
        alarm = self._alarm
        if alarm is None:
            return
        held = {m: s.page for m, s in self._seen.items() if s.page.place not in (Place.STARTING, Place.PARKED)}
        back = all(page.place in _JUDGED and page.generation > alarm.generation for page in held.values())
        if not held or not back:
            return
        self._alarm = None
        if alarm.members <= held.keys():
            self._patience = min(self._patience * 2, _MOST_PATIENCE)
            self._patient_until = now + self._patience_for

    # -- judging ------------------------------------------------------------------------------------------------------

    def _judge(self, now: float, state_of: Callable[[MemberId], str]) -> ProgressStalled | None:
        if now < self._quiet_until:
            return None
        deadline = self.deadline()
        stopped = tuple(sorted(m for m, seen in self._seen.items() if self._stands_still(now, m, seen, state_of)))
        if stopped:
            self._quiet_until = now + deadline
            return ProgressStalled(at=now, evidence=f"no progress for {deadline:.1f} s", stopped=stopped)
        if not self._all_silent(now, deadline):
            return None
        judged = {m: seen for m, seen in self._seen.items() if seen.page.place in _JUDGED}
        newest = max(seen.page.generation for seen in judged.values())
        self._alarm = _Alarm(now, frozenset(judged), newest)
        self._quiet_until = now + deadline
        return ProgressStalled(at=now, evidence=self._evidence(now, deadline, judged))

    def _all_silent(self, now: float, deadline: float, share: float = 1.0) -> bool:
        judged = [seen for seen in self._seen.values() if seen.page.place in _JUDGED]
        if not judged or any(seen.page.place in _BUSY_OTHERWISE for seen in self._seen.values()):
            return False
        if all(seen.steps == 0 and seen.page.step <= 0 for seen in judged):
            return False  # the world's first step
        return all(now - seen.since >= share * self._limit(seen.page.place, deadline) for seen in judged)

    def _limit(self, place: Place, deadline: float) -> float:
        return max(deadline, self._outside_floor) if place is Place.BETWEEN_STEPS else deadline

    def _stands_still(self, now: float, member: MemberId, seen: _Seen, state_of: Callable[[MemberId], str]) -> bool:
        deadline = self.deadline()
        if now - seen.since < deadline / 2:
            return False
        if now - seen.asked_at >= min(_STATE_EVERY, deadline / 8):
            seen.asked_at = now
            if not is_stopped(state_of(member)):
                seen.stopped_since = None
            elif seen.stopped_since is None:
                seen.stopped_since = seen.since if seen.page.place in _JUDGED else now
        return seen.stopped_since is not None and now - seen.stopped_since >= deadline

    def _evidence(self, now: float, deadline: float, judged: dict[MemberId, _Seen]) -> str:
        silent = min(now - seen.since for seen in judged.values())
        step = max(seen.page.step for seen in judged.values())
        return (
            f"no rank made progress for {silent:.1f} s in step {step} (deadline {deadline:.1f} s; "
            f"slowest recent step {self._slowest:.3f} s)"
        )


def _only_waits(former: Progress, page: Progress) -> bool:
    """Who has finished asks again and again to be released; that is no progress."""
    return former.place is page.place is Place.FINISHED and former.generation == page.generation
