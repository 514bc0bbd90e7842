"""Which rank computes slower than it used to, compared with the others.

Knows: how long each rank computed in each step, without its waiting (`progress.Compute`). Does not know: clocks,
processes. A slow rank makes all others wait, so whole steps are equally long everywhere; only computing time tells.

How it judges:

1. The same step of all ranks is compared: each rank with the median of the *others*, as the logarithm of the ratio.
   What hits all ranks in a step (the machine stood still, a longer batch) cancels out.
2. Steps are put together in blocks, and a block counts with its median: a collection of garbage or a page fault in a
   few steps does not show.
3. Each rank has a baseline, the median of its own past blocks. A rank may always be slower than the others. The
   baseline follows slow changes.
4. A rank is accused when several blocks in a row are over the threshold: a fixed one, or a multiple of the rank's own
   noise where that is larger. Where the noise is large the detector gets deaf rather than nervous.

While anybody is accused nothing is learnt, so that slowness never becomes normal. When the members change, all begins
anew: with two ranks, say, the baseline of one is made of the speed of the other.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from understudy.detection.contract import STEPPING, Action, Evidence, Look, RankLook
from understudy.foundation.ids import MemberId

_FIRST_STEPS = 5  # of each member: imports, compilation and allocation make them long
_BLOCK_STEPS = 6  # a median of 6 does not see two outliers, and three blocks with a torn one before are 23 steps
_BLOCK_SECONDS = 0.6  # blocks of very short steps are longer: what passes after a second harms nobody
_BLOCKS_IN_A_ROW = 3
_BLOCKS_TO_LEARN = 8
_BLOCKS_KEPT = 120
_THRESHOLD = math.log(1.3)  # well above what one rank differs from day to day, well below the 1.5 that must be found
_NOISE_FACTOR = 4.0  # three blocks in a row beyond four deviations do not happen by chance
_MAD_TO_DEVIATION = 1.4826  # of normally distributed numbers
_SLOW_FROM_THE_START = math.log(1.5)
_SAY_AGAIN_AFTER = 600.0  # seconds for which an accused rank is not named again


@dataclass(slots=True)
class _Track:
    """One member. Numbers are logarithms of ratios to the median of the others, one per block."""

    block: list[float] = field(default_factory=list)
    recent: "deque[float]" = field(default_factory=lambda: deque(maxlen=_BLOCKS_IN_A_ROW))
    history: "deque[float]" = field(default_factory=lambda: deque(maxlen=_BLOCKS_KEPT))
    accused_at: float | None = None
    said_at: float = float("-inf")
    noted_from_start: bool = False

    @property
    def knows_itself(self) -> bool:
        return len(self.history) >= _BLOCKS_TO_LEARN

    def baseline(self) -> float:
        return median(self.history)

    def threshold(self) -> float:
        """Above the baseline."""
        middle = self.baseline()
        noise = _MAD_TO_DEVIATION * median(abs(value - middle) for value in self.history)
        return max(_THRESHOLD, _NOISE_FACTOR * noise)

    def close_block(self, learning: bool) -> None:
        """What has left the last blocks in a row is history, unless somebody is slow just now."""
        if len(self.recent) == self.recent.maxlen and learning:
            self.history.append(self.recent[0])
        self.recent.append(median(self.block))
        self.block.clear()


class StragglerDetector:
    """A rank that computes 1.5 times as long as before is found within 30 steps of 0.1 s or more."""

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
        for member, seconds in taken.items():
            others = median(other for name, other in taken.items() if name != member)
            self._tracks[member].block.append(math.log(seconds / others))
        self._block_seconds += max(taken.values())  # the others wait for the slowest, so that is how long a step lasts
        steps = len(next(iter(self._tracks.values())).block)
        if steps < _BLOCK_STEPS or self._block_seconds < _BLOCK_SECONDS:
            return False
        learning = all(track.accused_at is None for track in self._tracks.values())
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
        excess = [value - track.baseline() for value in track.recent]
        limit = track.threshold()
        if len(excess) == _BLOCKS_IN_A_ROW and min(excess) > limit:
            track.accused_at = now if track.accused_at is None else track.accused_at
            if now - track.said_at >= _SAY_AGAIN_AFTER:
                track.said_at = now
                return self._slower(now, seen, track, math.exp(median(excess)), math.exp(limit))
        elif track.accused_at is not None and max(excess) < limit / 2:
            track.accused_at = None
            text = f"rank {seen.rank} ({seen.member}) computes as fast as before again"
            return Evidence(at=now, kind="straggler", text=text, rank=seen.rank, member=seen.member)
        if not track.noted_from_start and track.baseline() > _SLOW_FROM_THE_START:
            track.noted_from_start = True
            return self._slow_from_the_start(now, seen, track)
        return None

    def _slower(self, now: float, seen: RankLook, track: _Track, factor: float, limit: float) -> Evidence:
        others = median(taken for name, taken in self._seconds.items() if name != seen.member)
        text = (
            f"rank {seen.rank} ({seen.member}) computes {factor:.2f} times as long per step as it used to, compared "
            f"with the other ranks: {1000 * self._seconds[seen.member]:.0f} ms in its last step, the others "
            f"{1000 * others:.0f} ms, usually {math.exp(track.baseline()):.2f} times the others "
            f"(over {limit:.2f} for {_BLOCKS_IN_A_ROW} blocks of steps in a row)"
        )
        return Evidence(at=now, kind="straggler", text=text, action=Action.MOVE, rank=seen.rank, member=seen.member)

    def _slow_from_the_start(self, now: float, seen: RankLook, track: _Track) -> Evidence:
        text = (
            f"rank {seen.rank} ({seen.member}) has computed {math.exp(track.baseline()):.2f} times as long per step as "
            "the other ranks since it began; either it has more work, or its processor or device is slow"
        )
        return Evidence(at=now, kind="straggler", text=text, rank=seen.rank, member=seen.member)
