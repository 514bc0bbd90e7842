"""Two jobs that take turns of a few steps: while one steps, the other sleeps, so both see the same machine.

Used by claims that measure what something costs. A job is a command that runs the training script with `--turns`; its
`--times` file says when rank 0 committed each step.
"""

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy_testkit.faults.assertions import NotProven
from understudy_testkit.faults.watching import LiveRun

TURN = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """Median seconds per step and CPU seconds per step of rank 0."""

    step: float
    cpu: float


def turn_flags(folder: Path, arm: str, second: bool) -> tuple[str, ...]:
    """For the training script."""
    turns = ("--turns", str(folder), "--turn-length", str(TURN), *(["--second"] if second else []))
    return (*turns, "--times", str(folder / f"{arm}.json"))


def run_pair(
    folder: Path, commands: Mapping[str, Sequence[str]], protected: Mapping[str, Path], ranks: int
) -> dict[str, Measured]:
    """`commands`: of both arms. `protected`: the run folders of those that have a spare, which must be warm before the
    first turn that counts. The arm without `--second` begins it."""
    jobs = {
        arm: LiveRun(list(command), protected.get(arm, folder / "none"), folder / f"{arm}.txt", ranks)
        for arm, command in commands.items()
    }
    first, second = jobs.values()
    with first, second:
        _await_start(folder, jobs, protected)
        (folder / "baton.0").touch()
        deadline = time.monotonic() + 300
        while any(job.process.poll() is None for job in jobs.values()):
            if time.monotonic() > deadline:
                raise NotProven(f"{folder.name} did not end")
            time.sleep(0.5)
    for arm, job in jobs.items():
        if job.process.returncode != 0:
            raise NotProven(f"{arm} failed:\n{(folder / f'{arm}.txt').read_text(errors='replace')[-2000:]}")
    return {arm: _evaluate(folder / f"{arm}.json") for arm in commands}


def _await_start(folder: Path, jobs: Mapping[str, LiveRun], protected: Mapping[str, Path]) -> None:
    """Both jobs have run their first turn and wait for the baton, and the spares are warm."""
    wanted = [folder / "ready.0", folder / "ready.1"]
    deadline = time.monotonic() + 180
    while not all(path.exists() for path in wanted) or not all(jobs[arm].warm_spares() for arm in protected):
        if time.monotonic() > deadline or any(job.process.poll() is not None for job in jobs.values()):
            raise NotProven("the jobs did not get through their first turn")
        time.sleep(0.2)
    time.sleep(1.0)


def _evaluate(path: Path) -> Measured:
    """Steps within a turn: the first one of a turn contains the wait, and the first turn the warming of the spare."""
    told = json.loads(path.read_text())
    commits, cpu = told["commits"], told["cpu"]
    inside = [number for number in range(TURN, len(commits)) if number % TURN]
    steps = [commits[number] - commits[number - 1] for number in inside]
    work = [cpu[number] - cpu[number - 1] for number in inside]
    return Measured(statistics.median(steps), sum(work) / len(work))


def compare(title: str, pairs: Sequence[Mapping[str, Measured]], base: str, ours: str) -> float:
    """The ratio of the medians over all pairs, which is printed with its spread."""
    ratios = [pair[ours].step / pair[base].step for pair in pairs]
    medians = {arm: statistics.median(pair[arm].step for pair in pairs) for arm in (base, ours)}
    cpu = {arm: statistics.median(pair[arm].cpu for pair in pairs) for arm in (base, ours)}
    ratio = medians[ours] / medians[base]
    print(
        f"  {title}: median step {1000 * medians[base]:.2f} ms and {1000 * medians[ours]:.2f} ms, "
        f"ratio {ratio:.4f}, ratios of pairs {min(ratios):.4f} to {max(ratios):.4f} (median "
        f"{statistics.median(ratios):.4f}), CPU ratio {cpu[ours] / cpu[base]:.4f}",
        flush=True,
    )
    return ratio
