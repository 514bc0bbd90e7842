"""From recorded events to a result: what was useful, what was lost, how long each fault was felt.

Knows only what workers record, so every arm is judged by the same rules. The rules are in docs/benchmark.md.
"""

import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from understudy_testkit.benchmark.injection import FiredFault
from understudy_testkit.benchmark.results import FaultResult, TimeSplit
from understudy_testkit.benchmark.scenario import FaultKind, Work

_SETTLED_AFTER = 10
"""The first steps of a run (and of a new process) are slower for every arm and do not count for the step time."""

_LATE = 1.5
"""A step that took more than so many median steps was held up; the rest of its time is downtime."""


@dataclass(frozen=True, slots=True)
class Commit:
    """`life`: which recorder wrote it; a process that takes a rank, or takes it again, begins a new one."""

    at: float
    rank: int
    pid: int
    step: int
    loss: float
    samples: tuple[int, ...]
    replicas: int
    life: int


@dataclass(frozen=True, slots=True)
class Story:
    """All events of a run, in the order of time."""

    commits: tuple[Commit, ...]
    births: tuple[tuple[float, int], ...]  # at, life
    notices: tuple[float, ...]
    weights: tuple[str, ...]


def read_story(folder: Path) -> Story:
    commits: list[Commit] = []
    births: list[tuple[float, int]] = []
    notices: list[float] = []
    weights: list[str] = []
    for life, path in enumerate(sorted((folder / "events").glob("*.jsonl"))):
        pid = int(path.name.split("-")[1])
        for line in path.read_text().splitlines():
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue  # the process was killed while it wrote its last line
            at, rank = event["at"], event["rank"]
            match event["kind"]:
                case "step":
                    step, samples = event["step"], tuple(event["samples"])
                    commits.append(Commit(at, rank, pid, step, event["loss"], samples, event["replicas"], life))
                case "born":
                    births.append((at, life))
                case "noticed":
                    notices.append(at)
                case "end":
                    weights.append(event["weights"])
    ordered = sorted(commits, key=lambda commit: commit.at)
    return Story(tuple(ordered), tuple(sorted(births)), tuple(sorted(notices)), tuple(weights))


def kept(story: Story) -> dict[tuple[int, int], Commit]:
    """By step and rank, the last commit: what was done again replaces what was done before."""
    return {(commit.step, commit.rank): commit for commit in story.commits}


def steps_lost(story: Story) -> int:
    """Committed steps that were done again later."""
    times: Counter[tuple[int, int]] = Counter((commit.step, commit.rank) for commit in story.commits)
    most: dict[int, int] = {}
    for (step, _), count in times.items():
        most[step] = max(most.get(step, 0), count)
    return sum(count - 1 for count in most.values())


def samples_used(story: Story, work: Work, expected: Callable[[int], Sequence[Sequence[int]]]) -> tuple[int, int, int]:
    """(dropped, repeated, expected). Compared over the whole run, since an order of its own is no fault of an arm.

    A process that is killed between a commit and its record leaves a gap: when the others say that all ranks took part
    in the step, its samples count as used."""
    last = kept(story)
    used: Counter[int] = Counter()
    wanted: Counter[int] = Counter()
    for step in range(work.steps):
        plan = expected(step)
        present = [last[step, rank] for rank in range(work.ranks) if (step, rank) in last]
        whole = any(commit.replicas >= work.ranks for commit in present)
        for rank in range(work.ranks):
            wanted.update(plan[rank])
            if (step, rank) in last:
                used.update(last[step, rank].samples)
            elif whole:
                used.update(plan[rank])
    return (wanted - used).total(), (used - wanted).total(), wanted.total()


def executions(story: Story) -> list[tuple[float, int, bool, int]]:
    """Every time a step was done: when its last rank committed it, its number, whether it was kept, its replicas."""
    last = kept(story)
    done: dict[tuple[int, int], tuple[float, bool, int]] = {}
    turn: Counter[tuple[int, int]] = Counter()
    for commit in story.commits:
        turn[commit.step, commit.rank] += 1
        key = (commit.step, turn[commit.step, commit.rank])
        is_kept = last[commit.step, commit.rank] is commit
        at, so_far, replicas = done.get(key, (0.0, False, 0))
        done[key] = (max(at, commit.at), so_far or is_kept, max(replicas, commit.replicas))
    return sorted((at, step, is_kept, replicas) for (step, _), (at, is_kept, replicas) in done.items())


def median_step(story: Story) -> float:
    """Seconds between two commits of one process, without its first steps."""
    gaps: list[float] = []
    by_process: dict[tuple[int, int], list[Commit]] = {}
    for commit in story.commits:
        by_process.setdefault((commit.rank, commit.pid), []).append(commit)
    for commits in by_process.values():
        settled = commits[_SETTLED_AFTER:]
        gaps += [after.at - before.at for before, after in pairwise(settled)]
    return statistics.median(gaps) if gaps else 0.0


def split_time(story: Story, started: float, ranks: int) -> TimeSplit:
    done = executions(story)
    if not done:
        return TimeSplit(startup=0.0, useful=0.0, reduced=0.0, wasted=0.0, downtime=0.0)
    typical = statistics.median([after[0] - before[0] for before, after in pairwise(done)] or [0.0])
    useful = reduced = wasted = downtime = 0.0
    for before, (at, _, is_kept, replicas) in pairwise(done):
        span = at - before[0]
        work = span if span <= _LATE * typical else typical
        downtime += span - work
        if not is_kept:
            wasted += work
        else:
            share = min(1.0, replicas / ranks)
            useful += work * share
            reduced += work * (1.0 - share)
    return TimeSplit(startup=done[0][0] - started, useful=useful, reduced=reduced, wasted=wasted, downtime=downtime)


def fault_result(story: Story, fault: FiredFault, started: float, ranks: int) -> FaultResult:
    return FaultResult(
        kind=fault.planned.kind.value,
        rank=fault.planned.rank,
        step=fault.planned.step,
        at=fault.at - started,
        proof=fault.proof,
        noticed=_after(fault.at, [at for at in story.notices if at > fault.at]),
        stepping=_after(fault.at, _stepping(story, fault.at)),
        full_strength=_after(fault.at, _whole_steps(story, fault, ranks)),
    )


def _after(at: float, times: list[float]) -> float | None:
    return min(times) - at if times else None


def _stepping(story: Story, at: float) -> list[float]:
    """Commits that needed the new world: by a process that took its rank after the fault, or two steps further on.

    The step that was under way may still be committed by the survivors, so the next number proves nothing."""
    newest: dict[int, int] = {}
    for commit in story.commits:
        if commit.at <= at:
            newest[commit.rank] = commit.step
    reached = max(newest.values(), default=-1)
    reborn = {life for born, life in story.births if born > at}
    return [c.at for c in story.commits if c.at > at and (c.life in reborn or c.step >= reached + 2)]


def _whole_steps(story: Story, fault: FiredFault, ranks: int) -> list[float]:
    """When a step was committed by all ranks after the fault, the struck rank's by a process that was not struck."""
    healthy: dict[int, dict[int, float]] = {}
    for commit in story.commits:
        struck = commit.pid == fault.pid and fault.planned.kind is not FaultKind.SLOW
        if commit.at > fault.at and not struck and commit.replicas >= ranks:
            healthy.setdefault(commit.step, {})[commit.rank] = commit.at
    return [max(by_rank.values()) for by_rank in healthy.values() if len(by_rank) >= ranks]


def timeline(story: Story, started: float) -> tuple[tuple[float, int], ...]:
    return tuple((round(at - started, 3), step) for at, step, _, _ in executions(story))


def losses(story: Story, steps: int) -> tuple[float, ...]:
    """Mean over the ranks whose samples counted; a rank that only heals has a loss of weights that are not used."""
    by_step: dict[int, list[float]] = {}
    for (step, _), commit in kept(story).items():
        if not commit.samples:
            continue
        by_step.setdefault(step, []).append(commit.loss)
    return tuple(statistics.fmean(by_step[step]) for step in range(steps) if step in by_step)
