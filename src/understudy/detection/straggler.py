"""Which rank computes slower than it used to, compared with the others.

Knows: how long each rank computed in each step, without its waiting (`progress.Compute`). Does not know: clocks,
processes. A slow rank makes all others wait, so whole steps are equally long everywhere; only computing time tells.

How it judges:

1. The same step of all ranks is compared: each rank with the median of the *others*, as the logarithm of the ratio.
   What hits all ranks in a step (the machine stood still, a longer batch) cancels out.
2. Steps are put together in blocks, and a block counts with its median: a collection of garbage or a page fault in a
   few steps does not show.
3. Each rank has a baseline and a noise of its own, learnt from its past blocks. A rank may always be slower than the
   others, and the baseline follows slow changes.
4. Suspicion grows with every block by what that is slower than an allowance above the baseline, and shrinks with every
   block below (a cumulative sum). One block counts for so much at most, so that several must agree. Allowance and limit
   grow with the noise: in a noisy world a slow rank is found later, and no rank is accused by chance.

While any rank is accused nothing is learnt, so that slowness never becomes normal. When the members change, all begins
anew: with two ranks, say, the baseline of one is made of the speed of the other.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from understudy.detection.contract import STEPPING, Action, Evidence, Look, RankLook
from understudy.foundation.ids import MemberId

_FIRST_STEPS = 5  # of each member: imports, compilation and allocation make them long
_BLOCK_STEPS = 6  # a median of 6 does not see two outliers, and three blocks with a torn one before are 23 steps
_BLOCK_SECONDS = 0.5  # blocks of very short steps are longer: what passes after a second does no harm
_BLOCKS_TO_LEARN = 8
_BLOCKS_KEPT = 120
_BLOCKS_HELD_BACK = 6  # are not learnt from yet: slowness must be judged by what was usual before it
_ALLOWANCE = math.log(1.2)  # so much slower than usual is ignored
_ALLOWED_NOISE = 1.0  # and so many deviations
_MOST_PER_BLOCK = 0.17  # a rank slowed 1.5 times gives log(1.5) - log(1.2) = 0.22
_LIMIT = 0.45  # more than two blocks can give, less than three
_CHANCE = 14.0  # by chance the limit is reached once in exp(14), a million blocks (Siegmund's formula for such sums)
_MAD_TO_DEVIATION = 1.4826  # of normally distributed numbers
_SMALL_SAMPLE = 2.0  # the noise of n blocks is taken for (1 + 2 / n) times what it seems: few blocks may look too alike
_SLOW_FROM_THE_START = math.log(1.5)
_SAY_AGAIN_AFTER = 600.0  # seconds for which an accused rank is not named again


@dataclass(slots=True)
class _Track:
    """One member. Numbers are logarithms of ratios to the median of the others, one per block."""

    block: list[float] = field(default_factory=list)
    held_back: "deque[float]" = field(default_factory=deque)
    history: "deque[float]" = field(default_factory=lambda: deque(maxlen=_BLOCKS_KEPT))
    suspicion: float = 0.0
    accused: bool = False
    said_at: float = float("-inf")
    noted_from_start: bool = False

    @property
    def knows_itself(self) -> bool:
        return len(self.history) >= _BLOCKS_TO_LEARN

    def baseline(self) -> float:
        return median(self.history)

    def noise(self) -> float:
        middle = self.baseline()
        deviation = _MAD_TO_DEVIATION * median(abs(value - middle) for value in self.history)
        return deviation * (1 + _SMALL_SAMPLE / len(self.history))

    def close_block(self, learning: bool) -> None:
        value = median(self.block)
        self.block.clear()
        if self.knows_itself:
            self._suspect(value)
        self.held_back.append(value)
        if len(self.held_back) > _BLOCKS_HELD_BACK:
            oldest = self.held_back.popleft()
            if learning:
                self.history.append(oldest)

    def _suspect(self, value: float) -> None:
        noise = self.noise()
        allowance = max(_ALLOWANCE, _ALLOWED_NOISE * noise)
        limit = max(_LIMIT, _CHANCE * noise**2 / (2 * allowance) - noise)
        excess = value - self.baseline() - allowance
        grown = self.suspicion + max(-_MOST_PER_BLOCK, min(_MOST_PER_BLOCK, excess))
        self.suspicion = max(
            0.0, min(grown, limit + _MOST_PER_BLOCK)
        )  # a rank that gets well again is not held responsible
        if self.suspicion > limit:
            self.accused = True

    def lately(self) -> float:
        """How many times slower than usual, in the last blocks."""
        blocks = list(self.held_back)[-3:]
        return math.exp(median(blocks) - self.baseline())


class StragglerDetector:
    """A rank that computes 1.5 times as long as before is found within 30 steps of 0.1 s or more."""

    contract_version = 1

    def __init__(self) -> None:
        self._tracks: dict[MemberId, _Track] = {}
        self._done = -1  # the last step that was compared
        self._warm = False  # every member has its first steps behind it
        self._block_seconds = 0.0
        self._seconds: dict[MemberId, float] = {}  # of the last step that was compared; for the text

    def look(self, look: Look) -> tuple[Evidence, ...]:
        members = {member: seen for member, seen in look.ranks.items() if seen.rank is not None}
        if members.keys() != self._tracks.keys():
            self._begin_anew(members)
        if len(members) < 2 or any(seen.page.place not in STEPPING for seen in members.values()):
            return ()
        evidence: list[Evidence] = []
        for taken in self._new_steps(members):
            if self._compare(taken):
                evidence += self._judge(look.now, members)
        return tuple(evidence)

    def _begin_anew(self, members: Mapping[MemberId, RankLook]) -> None:
        self._tracks = {member: _Track() for member in members}
        self._warm, self._block_seconds = False, 0.0
        self._seconds = {}

    # -- comparing ----------------------------------------------------------------------------------------------------

    def _new_steps(self, members: Mapping[MemberId, RankLook]) -> list[dict[MemberId, float]]:
        """What each member took for every step that all of them have behind them and that is new to us."""
        computed = {member: seen.page.compute for member, seen in members.items()}
        common = min(compute.last_step for compute in computed.values())
        if not self._warm:
            self._warm = all(compute.steps >= _FIRST_STEPS for compute in computed.values())
            self._done = common
        if common < self._done:  # a step runs again
            self._done = common
        known = set.intersection(*(set(compute.recent) for compute in computed.values()))
        new = sorted(step for step in known if self._done < step <= common)
        self._done = common
        return [{member: compute.recent[step] for member, compute in computed.items()} for step in new]

    def _compare(self, taken: Mapping[MemberId, float]) -> bool:
        """Is a block full with this step?"""
        if not all(math.isfinite(seconds) and seconds > 0 for seconds in taken.values()):
            return False  # a page that was being written
        self._seconds = dict(taken)
        ordered = sorted(taken.values())
        for member, seconds in taken.items():
            self._tracks[member].block.append(math.log(seconds / _median_without(ordered, seconds)))
        self._block_seconds += max(taken.values())  # the others wait for the slowest, so that is how long a step lasts
        steps = len(next(iter(self._tracks.values())).block)
        if steps < _BLOCK_STEPS or self._block_seconds < _BLOCK_SECONDS:
            return False
        learning = not any(track.accused for track in self._tracks.values())
        for track in self._tracks.values():
            track.close_block(learning)
        self._block_seconds = 0.0
        return True

    # -- judging ------------------------------------------------------------------------------------------------------

    def _judge(self, now: float, members: Mapping[MemberId, RankLook]) -> list[Evidence]:
        evidence = []
        for member, track in self._tracks.items():
            if not track.knows_itself:
                continue
            found = self._judge_one(now, members[member], track)
            if found is not None:
                evidence.append(found)
        return evidence

    def _judge_one(self, now: float, seen: RankLook, track: _Track) -> Evidence | None:
        if track.accused and track.suspicion == 0.0:
            track.accused = False
            text = f"rank {seen.rank} ({seen.member}) computes as fast as before again"
            return Evidence(at=now, kind="straggler over", text=text, rank=seen.rank, member=seen.member)
        if track.accused and now - track.said_at >= _SAY_AGAIN_AFTER:
            track.said_at = now
            return self._slower(now, seen, track)
        if not track.noted_from_start and track.baseline() > _SLOW_FROM_THE_START:
            track.noted_from_start = True
            return self._slow_from_the_start(now, seen, track)
        return None

    def _slower(self, now: float, seen: RankLook, track: _Track) -> Evidence:
        others = median(taken for name, taken in self._seconds.items() if name != seen.member)
        text = (
            f"rank {seen.rank} ({seen.member}) computes {track.lately():.2f} times as long per step as it used to, "
            f"compared with the other ranks: {1000 * self._seconds[seen.member]:.0f} ms in its last step, the others "
            f"{1000 * others:.0f} ms; usually {math.exp(track.baseline()):.2f} times the others, give or take "
            f"{100 * track.noise():.0f}%"
        )
        return Evidence(at=now, kind="straggler", text=text, action=Action.MOVE, rank=seen.rank, member=seen.member)

    def _slow_from_the_start(self, now: float, seen: RankLook, track: _Track) -> Evidence:
        text = (
            f"rank {seen.rank} ({seen.member}) has computed {math.exp(track.baseline()):.2f} times as long per step as "
            "the other ranks since it began; either it has more work, or its processor or device is slow"
        )
        return Evidence(at=now, kind="straggler", text=text, rank=seen.rank, member=seen.member)


def _median_without(ordered: Sequence[float], one: float) -> float:
    """The median of all but `one`. They are sorted already: this is called for every rank and step."""
    place = bisect_left(ordered, one)
    rest = len(ordered) - 1
    upper = rest // 2
    above = ordered[upper + (upper >= place)]
    if rest % 2:
        return above
    lower = upper - 1
    return (ordered[lower + (lower >= place)] + above) / 2
