"""Runs a scenario: every repetition visits all arms, each in its turn, on a machine that is as quiet as can be had.

Interrupted campaigns go on where they stopped: a run that has its result file is not run again.
"""

import importlib.metadata
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from understudy.errors import UsageError
from understudy_testkit.benchmark import evaluation
from understudy_testkit.benchmark.arms import ARMS
from understudy_testkit.benchmark.arms.arm import Arm, RunPaths
from understudy_testkit.benchmark.injection import FaultInjector
from understudy_testkit.benchmark.processes import MarkedRun, wait_until_quiet
from understudy_testkit.benchmark.recording import Board
from understudy_testkit.benchmark.results import Campaign, RunResult
from understudy_testkit.benchmark.scenario import Scenario

_LOOK_EVERY = 0.005


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of one arm."""

    arm: str
    repetition: int
    faulty: bool
    when: str = ""  # for an arm that has several such turns in a repetition

    @property
    def name(self) -> str:
        kind = "faults" if self.faulty else "steady"
        return f"{self.repetition:02d}-{kind}-{self.arm}" + (f"-{self.when}" if self.when else "")


def turns(scenario: Scenario, arms: list[str]) -> list[Turn]:
    """All runs, interleaved; the first one changes from one repetition to the next.

    `bare` runs again before and after the runs with faults: they are compared with it, and a machine's speed drifts."""
    order: list[Turn] = []
    for repetition in range(scenario.repetitions):
        first = repetition % len(arms)
        rotated = arms[first:] + arms[:first]
        order += [Turn(arm, repetition, faulty=False) for arm in rotated if scenario.runs_steady(arm)]
        if scenario.schedule():
            limit = [arm for arm in arms if arm == "bare"]
            order += [Turn(arm, repetition, faulty=False, when="before-faults") for arm in limit]
            order += [Turn(arm, repetition, faulty=True) for arm in rotated if ARMS[arm].survives_faults]
            order += [Turn(arm, repetition, faulty=False, when="after-faults") for arm in limit]
    return order


def choose_arms(scenario: Scenario, wanted: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """The arms that can run here, and for the others why not."""
    names = list(wanted or scenario.arms or ARMS)
    unknown = [name for name in names if name not in ARMS]
    if unknown:
        raise UsageError(f"no such arm: {', '.join(unknown)} (there are: {', '.join(ARMS)})")
    left_out: dict[str, str] = {}
    for name in names:
        why = ARMS[name].missing()
        if why is None and scenario.work.mode not in ARMS[name].modes:
            why = f"it has no {scenario.work.mode} variant here"
        if why is not None:
            left_out[name] = why
    return [name for name in names if name not in left_out], left_out


def run_campaign(
    scenario: Scenario,
    folder: Path,
    arms: tuple[str, ...] = (),
    progress: Callable[[str, int, int], None] = lambda *_: None,
    quiet_timeout: float = 60.0,
    wanted: Callable[[Turn], bool] = lambda _: True,
) -> Campaign:
    """`wanted` may leave out turns, for a short look."""
    chosen, left_out = choose_arms(scenario, arms)
    folder.mkdir(parents=True, exist_ok=True)
    order = [turn for turn in turns(scenario, chosen) if wanted(turn)]
    results: list[RunResult] = []
    for number, turn in enumerate(order):
        kept = folder / turn.name / "result.json"
        if kept.exists():
            results.append(msgspec.json.decode(kept.read_bytes(), type=RunResult))
            continue
        progress(f"{turn.name}: waiting for a quiet machine", number, len(order))
        busy = wait_until_quiet(quiet_timeout)

        def show(steps: int, faults: int, name: str = turn.name, place: int = number) -> None:
            progress(f"{name}: step {steps}/{scenario.work.steps}, {faults} faults", place, len(order))

        result = run_once(scenario, ARMS[turn.arm], turn, folder / turn.name, busy, show)
        kept.write_bytes(msgspec.json.encode(result))
        results.append(result)
    return Campaign(
        scenario=scenario,
        machine=describe_machine(),
        settings={name: dict(ARMS[name].settings) for name in chosen},
        titles={name: ARMS[name].title for name in chosen},
        left_out=left_out,
        runs=tuple(results),
    )


def run_once(
    scenario: Scenario, arm: Arm, turn: Turn, folder: Path, busy: float, show: Callable[[int, int], None]
) -> RunResult:
    """One run, from the start of its command to its end. Whatever it leaves behind is ended."""
    shutil.rmtree(folder, ignore_errors=True)  # events and checkpoints of an interrupted run are none of this one's
    folder.mkdir(parents=True)
    played = scenario if turn.faulty else scenario.without_faults()
    place = RunPaths(folder=folder, scenario_file=folder / "scenario.json")
    place.scenario_file.write_bytes(msgspec.json.encode(played))
    board = Board(folder, scenario.work.ranks)
    for rank in range(scenario.work.ranks):
        board.show(rank, 0, -1)
    injector = FaultInjector(played, board)
    started = shown = time.monotonic()
    with MarkedRun(arm.command(played, place), folder / "output.txt") as run:
        while (exit_code := run.exit_code) is None and time.monotonic() < started + scenario.limit:
            injector.look()
            if time.monotonic() > shown + 1.0:
                shown = time.monotonic()
                show(1 + max(board.look(rank)[1] for rank in range(scenario.work.ranks)), len(injector.fired))
            time.sleep(_LOOK_EVERY)
        ended = time.monotonic()
    played_run = PlayedRun(played, turn, folder, injector, started, ended, exit_code)
    return _judge(played_run, arm, busy)


@dataclass(frozen=True, slots=True)
class PlayedRun:
    """A run that is over: what was asked for, and what its process and the faults did."""

    scenario: Scenario
    turn: Turn
    folder: Path
    injector: FaultInjector
    started: float
    ended: float
    exit_code: int | None

    def failure(self, steps_reached: int) -> str:
        """Why it does not count as finished; empty if it does."""
        if self.exit_code is None:
            return f"it had not ended after {self.scenario.limit:g} s"
        if self.exit_code != 0:
            tail = (self.folder / "output.txt").read_text(errors="replace")[-600:]
            return f"exit code {self.exit_code}: {tail}"
        if self.injector.remaining:
            return f"{self.injector.remaining} faults did not fire"
        if unproven := [fault.proof for fault in self.injector.fired if fault.proof.startswith("NOT")]:
            return "; ".join(unproven)
        steps = self.scenario.work.steps
        return f"only {steps_reached} of {steps} steps were committed" if steps_reached < steps else ""


def _judge(run: PlayedRun, arm: Arm, busy: float) -> RunResult:
    from understudy_testkit.benchmark.workload import expected_samples  # torch is needed only here

    work, injector, started = run.scenario.work, run.injector, run.started
    story = evaluation.read_story(run.folder)
    last_commit = story.commits[-1].at if story.commits else run.ended
    dropped, repeated, expected = evaluation.samples_used(story, work, expected_samples(work))
    failure = run.failure(len({commit.step for commit in story.commits}))
    weights = set(story.weights)
    return RunResult(
        arm=arm.name,
        scenario=run.scenario.name,
        repetition=run.turn.repetition,
        faulty=run.turn.faulty,
        finished=not failure,
        exit_code=run.exit_code,
        failure=failure,
        wall_clock=last_commit - started,
        step_time=evaluation.median_step(story),
        split=evaluation.split_time(story, started, work.ranks),
        steps_lost=evaluation.steps_lost(story),
        samples_dropped=dropped,
        samples_repeated=repeated,
        samples_expected=expected,
        faults=tuple(evaluation.fault_result(story, fault, started, work.ranks) for fault in injector.fired),
        timeline=evaluation.timeline(story, started),
        losses=evaluation.losses(story, work.steps),
        weights=weights.pop() if len(weights) == 1 else f"{len(weights)} different",
        busy_before=round(busy, 3),
        load_after=round(os.getloadavg()[0], 2),
        versions={name: _version(name) for name in arm.packages},
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def describe_machine() -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "accelerators": "none (gloo over loopback)",
    }
