"""Ranks that compute for made-up times, and the looks at them. Nothing sleeps here."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from understudy.detection.contract import Detector, Evidence, Look, RankLook
from understudy.detection.progress import KEPT_STEPS, Compute, Place, Progress
from understudy.foundation.ids import MemberId, Rank

Seconds = Callable[[int, int], float]
"""(rank, step) -> seconds of computing."""


@dataclass
class World:
    """All ranks run the same steps; each step lasts as long as its slowest rank computes, and a bit."""

    detector: Detector
    size: int
    seconds: Seconds
    look_every: float = 0.5
    communication: float = 0.01
    now: float = 100.0
    step: int = 0
    members: dict[int, MemberId] = field(default_factory=dict)
    taken: dict[MemberId, dict[int, float]] = field(default_factory=dict)
    found: list[tuple[int, Evidence]] = field(default_factory=list)
    _next_look: float = 0.0

    def __post_init__(self) -> None:
        for rank in range(self.size):
            self.seat(rank, f"m-{rank}")

    def seat(self, rank: int, name: str) -> None:
        former = self.members.get(rank)
        if former is not None:
            del self.taken[former]
        self.members[rank] = MemberId(name)
        self.taken[MemberId(name)] = {}

    def run(self, steps: int) -> list[Evidence]:
        """Returns what was said meanwhile."""
        before = len(self.found)
        for _ in range(steps):
            spent = {rank: self.seconds(rank, self.step) for rank in self.members}
            for rank, seconds in spent.items():
                kept = self.taken[self.members[rank]]
                kept[self.step] = seconds
                kept.pop(self.step - KEPT_STEPS, None)
            self.now += max(spent.values()) + self.communication
            self.step += 1
            if self.now >= self._next_look:
                self._next_look = self.now + self.look_every
                self.look()
        return [evidence for _step, evidence in self.found[before:]]

    def look(self) -> None:
        ranks = {member: self._seen(rank, member) for rank, member in self.members.items()}
        self.found += [(self.step, evidence) for evidence in self.detector.look(Look(now=self.now, ranks=ranks))]

    def _seen(self, rank: int, member: MemberId) -> RankLook:
        taken = self.taken[member]
        compute = Compute(sum(taken.values()), self.step, self.step - 1, dict(taken)) if taken else Compute()
        page = Progress(self.step + 1, 1, self.step, self.now, Place.IN_STEP, compute)
        return RankLook(member=member, rank=Rank(rank), page=page)


def ordinary(
    seed: int, size: int, *, step: float = 0.2, noise: float = 0.06, spikes: float = 0.01, drift: float = 0.3
) -> Seconds:
    """What a healthy world looks like: every rank has its own speed, a noise with a long tail, spikes of its own
    (garbage, page faults), pauses that hit all ranks at once, and a slow drift of the whole and of each."""
    chance = random.Random(seed)
    speeds = [chance.uniform(0.95, 1.08) for _ in range(size)]
    drifts = [chance.uniform(-0.1, 0.1) for _ in range(size)]
    pauses: dict[int, float] = {}

    def seconds(rank: int, number: int) -> float:
        if number not in pauses:
            pauses[number] = chance.uniform(0.5, 5.0) if chance.random() < 0.002 else 0.0
        own = step * speeds[rank] * (1 + (drift + drifts[rank]) * number / 10_000)
        own *= chance.lognormvariate(0.0, noise)
        if chance.random() < spikes:
            own *= 1 + min(30.0, chance.paretovariate(1.2))
        return own + pauses[number]

    return seconds
