"""Many seeds at once: plays a range of them and adds up what came of it. Knows nothing of processes: a caller that
wants to use several cores gives each a range."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from understudy_testkit.simulator.invariants import Violation
from understudy_testkit.simulator.scenarios import Report, play


@dataclass(slots=True)
class Tally:
    runs: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    generations: int = 0
    lost_messages: int = 0
    longest: float = 0.0
    violations: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.runs += other.runs
        self.endings += other.endings
        self.fired += other.fired
        self.generations += other.generations
        self.lost_messages += other.lost_messages
        self.longest = max(self.longest, other.longest)
        self.violations += other.violations


def play_range(seeds: range, game: Callable[[int], Report] = play) -> Tally:
    """Play these seeds. A violation does not end the campaign; its story is kept."""
    tally = Tally()
    for seed in seeds:
        tally.runs += 1
        try:
            report = game(seed)
        except Violation as violation:
            tally.violations.append((seed, str(violation)))
            continue
        tally.endings[report.kind] += 1
        tally.fired.update(report.fired)
        tally.generations += report.generations
        tally.lost_messages += report.lost_messages
        tally.longest = max(tally.longest, report.seconds)
    return tally
