"""What an agent sees of members that make no progress: stopped, deaf, traced, busy, waiting (`protocol.liveness`).

A member whose page has not changed for half a second is asked what it does (`Look.ask`); its control thread answers for
it, at no cost for members that move. The kernel says whether a process is stopped or traced. Nothing is concluded here.

- A process that gets no processor, or waits for a disk, cannot answer either: only a control thread that sleeps
  although it was asked is deaf. Every member is asked once in the beginning, so that this thread is known. It sleeps
  too while the main thread holds the interpreter lock in a long call (a checkpoint is written) and waits for a
  processor: that time does not count.
- If this watch itself did not run for a while (the machine stood still, the agent was stopped), that time counts for
  no member: it was the same for all.
- Time in which a process is stopped or held by a debugger does not count as busy: it could do nothing.
- A busy member whose stack and CPU time, its children's included, stay the same is told apart from one that works.

What is seen is told (`ActivityObserved`) when something is wrong, when it was asked for, and once more when all is well
again: at growing intervals while nothing changes, and at once when a process has been stopped or deaf for too long: the
protocol concludes nothing from what was not seen. Called by the supervisor.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from understudy.detection.process_state import Kernel, is_stopped
from understudy.detection.progress import Place, Progress
from understudy.foundation.ids import Generation, HostId, MemberId
from understudy.protocol.events import ActivityObserved
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.liveness import Condition, Sighting, is_gone
from understudy.protocol.policy import Policy
from understudy.wire.messages import ActivityReport

QUIET = 0.5  # seconds without progress until a member is asked what it does
_ASK_EVERY = 1.0
_DEAF_AFTER = 1.0  # seconds without an answer; from then on it is told
_ASLEEP = 1.0  # a look that comes so many seconds late: this process did not run
_IDLE_CPU = 0.05  # of one core; less than that is what waiting threads use
_CLOSELY_FOR = 5.0
_LONGEST_GAP = 16.0
_LONG_OUTSIDE = 10.0
_LONG_SETUP = 30.0
_UNJUDGED = (Place.STARTING, Place.RELEASED)

KernelOf = Callable[[MemberId, int | None], Kernel]
"""Of a member's process, and of its control thread if that is known."""


@dataclass(slots=True)
class _Seen:
    """One member: its last page, since when that has not changed, what it was asked and answered."""

    page: Progress
    since: float
    asked_at: float | None = None
    unanswered_since: float | None = None
    answer: ActivityReport | None = None
    answered_at: float = 0.0
    unchanged_since: float | None = None
    held: Condition | None = None  # stopped, or traced
    held_since: float = 0.0
    ran_at: float | None = None  # when the kernel last said that it is not held
    delayed: float | None = None  # as the kernel said at the last look

    def shift(self, seconds: float) -> None:
        """So much time counts for no member."""
        self.since += seconds
        self.held_since += seconds
        for name in ("asked_at", "unanswered_since", "unchanged_since", "ran_at"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value + seconds)

    def look_at(self, now: float, kernel: Kernel) -> None:
        """A process that was held and goes on has been busy for as long as it had been before."""
        held = Condition.TRACED if kernel.traced else Condition.STOPPED if is_stopped(kernel.state) else None
        if held is not self.held:
            if self.held is not None:
                self.shift(now - self.held_since)
                self.asked_at, self.unanswered_since, self.ran_at = None, None, now
            # it may have been stopped right after the last sign of life
            self.held, self.held_since = held, self.since if self.ran_at is None else self.ran_at
        if held is None:
            self.ran_at = now
        if self.unanswered_since is not None and self.delayed is not None:
            self.unanswered_since = min(now, self.unanswered_since + max(0.0, kernel.delayed - self.delayed))
        self.delayed = kernel.delayed


@dataclass(slots=True)
class Look:
    """`ask`: members to be asked what they do, with this number."""

    events: list[ActivityObserved] = field(default_factory=list)
    ask: list[tuple[MemberId, int]] = field(default_factory=list)


class LivenessWatch:
    """Call `observe` several times a second; it costs one comparison for each member that moves."""

    def __init__(self, policy: Policy, look_every: float = 0.25, host: HostId = THIS_HOST) -> None:
        self._policy, self._look_every, self._host = policy, look_every, host
        self._seen: dict[MemberId, _Seen] = {}
        self._last_look: float | None = None
        self._number = 0
        self._closely_until = float("-inf")
        self._told_at, self._gap = float("-inf"), 0.0
        self._told: frozenset[tuple[MemberId, Condition, bool]] = frozenset()

    def watch_closely(self, now: float) -> None:
        """The coordinator wants to know: tell at the next look, and go on for a while."""
        self._closely_until, self._gap = now + _CLOSELY_FOR, 0.0

    def answered(self, now: float, member: MemberId, answer: ActivityReport) -> None:
        seen = self._seen.get(member)
        if seen is None:
            return
        former, elapsed = seen.answer, now - seen.answered_at
        same = former is not None and former.stack == answer.stack
        worked = former is not None and answer.cpu - former.cpu > _IDLE_CPU * elapsed
        if not same or worked:
            seen.unchanged_since = None
        elif seen.unchanged_since is None:
            seen.unchanged_since = seen.answered_at
        seen.answer, seen.answered_at, seen.unanswered_since = answer, now, None

    def observe(self, now: float, pages: Mapping[MemberId, Progress], kernel_of: KernelOf, pace: float) -> Look:
        self._forgive_own_absence(now)
        for member in self._seen.keys() - pages.keys():
            del self._seen[member]
        look = Look()
        sightings = [
            sighting for member, page in pages.items() if (sighting := self._see(now, member, page, kernel_of))
        ]
        look.ask = [
            (member, self._ask(now, seen)) for member, seen in self._seen.items() if self._wants_asking(now, seen)
        ]
        told = self._what_to_tell(now, sightings, pace)
        if told is not None:
            look.events.append(told)
        return look

    def silent_for(self, now: float) -> float:
        """How long every member in a step has been silent; 0 when one moves or none is in a step. In seconds."""
        steps = [seen for seen in self._seen.values() if seen.page.place is Place.IN_STEP]
        busy_otherwise = any(seen.page.place in (Place.SETUP, Place.RECOVERING) for seen in self._seen.values())
        return 0.0 if busy_otherwise else min((now - seen.since for seen in steps), default=0.0)

    # -- seeing -------------------------------------------------------------------------------------------------------

    def _forgive_own_absence(self, now: float) -> None:
        last, self._last_look = self._last_look, now
        missed = 0.0 if last is None else now - last - self._look_every
        if missed > _ASLEEP:
            for seen in self._seen.values():
                seen.shift(missed)

    def _see(self, now: float, member: MemberId, page: Progress, kernel_of: KernelOf) -> Sighting | None:
        """None for a member that has not come to its `join()`, and for one that the job does not need any more."""
        seen = self._seen.get(member)
        if seen is None or (page.count != seen.page.count and not _only_waits(seen.page, page)):
            former = seen
            self._seen[member] = seen = _Seen(page, now)
            if former is not None:  # its control thread stays the same
                seen.answer, seen.answered_at = former.answer, former.answered_at
        if now - seen.since < QUIET:
            return Sighting(member=member, condition=Condition.MOVING) if page.place not in _UNJUDGED else None
        kernel = kernel_of(member, None if seen.answer is None else seen.answer.control_thread)
        seen.look_at(now, kernel)
        return self._sighting(now, member, seen, kernel)

    def _sighting(self, now: float, member: MemberId, seen: _Seen, kernel: Kernel) -> Sighting | None:
        place, outside = seen.page.place, seen.page.place is not Place.IN_STEP
        if place is Place.RELEASED:
            return None
        if seen.held is not None:
            return Sighting(member=member, condition=seen.held, seconds=now - seen.held_since, outside=outside)
        if place in (Place.STARTING, Place.PARKED):
            return None
        deaf = 0.0 if seen.unanswered_since is None else now - seen.unanswered_since
        if deaf >= _DEAF_AFTER and not kernel.starved:
            return Sighting(member=member, condition=Condition.DEAF, seconds=deaf, outside=outside)
        if seen.answer is None or seen.answered_at < seen.since:
            return Sighting(member=member, condition=Condition.MOVING)  # nothing is known yet
        return Sighting(
            member=member,
            condition=Condition.WAITING if seen.answer.waiting else Condition.BUSY,
            seconds=now - seen.since,
            unchanged=0.0 if seen.unchanged_since is None else now - max(seen.unchanged_since, seen.since),
            outside=outside,
            recovering=place is Place.RECOVERING,
            where=seen.answer.where,
            heard=Generation(seen.answer.heard),
        )

    # -- asking -------------------------------------------------------------------------------------------------------

    @staticmethod
    def _wants_asking(now: float, seen: _Seen) -> bool:
        if seen.page.place in (*_UNJUDGED, Place.PARKED):
            return False
        if seen.asked_at is None:
            return seen.answer is None or now - seen.since >= QUIET
        return now - max(seen.asked_at, seen.since) >= _ASK_EVERY

    def _ask(self, now: float, seen: _Seen) -> int:
        self._number += 1
        seen.asked_at = now
        if seen.unanswered_since is None:
            seen.unanswered_since = now
        return self._number

    # -- telling ------------------------------------------------------------------------------------------------------

    def _what_to_tell(self, now: float, sightings: list[Sighting], pace: float) -> ActivityObserved | None:
        closely = now < self._closely_until
        wrong = any(self._is_suspicious(sighting, pace) for sighting in sightings)
        if not wrong and not closely:
            over = bool(self._told)
            self._told, self._gap = frozenset(), 0.0
            return self._told_now(now, sightings) if over else None
        conditions = frozenset((each.member, each.condition, is_gone(self._policy, each)) for each in sightings)
        changed = conditions != self._told
        if now - self._told_at < (self._look_every if changed else self._gap):
            return None
        self._gap = _ASK_EVERY if changed or closely else min(_LONGEST_GAP, max(_ASK_EVERY, 2 * self._gap))
        self._told, self._told_at = conditions, now
        return self._told_now(now, sightings)

    def _told_now(self, now: float, sightings: list[Sighting]) -> ActivityObserved:
        return ActivityObserved(at=now, sightings=tuple(sightings), host=self._host)

    def _is_suspicious(self, sighting: Sighting, pace: float) -> bool:
        match sighting.condition:
            case Condition.STOPPED | Condition.DEAF | Condition.TRACED:
                return True
            case Condition.BUSY | Condition.WAITING:
                if self._seen[sighting.member].page.place is Place.SETUP:
                    return sighting.seconds >= _LONG_SETUP
                long_step = self._policy.stall_deadline(pace) / 2
                return sighting.seconds >= (max(_LONG_OUTSIDE, long_step) if sighting.outside else long_step)
        return False


def _only_waits(former: Progress, page: Progress) -> bool:
    """A member that has finished asks again and again to be released; that is no progress."""
    return former.place is page.place is Place.FINISHED and former.generation == page.generation
