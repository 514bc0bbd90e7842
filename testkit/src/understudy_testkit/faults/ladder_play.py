"""Plays a scenario file (`scenarios/*.toml`): one job, its faults, and the rung of the ladder that must be taken.

Knows how a scenario is started, struck and judged. The faults inside workers are those of `catalogue`; two more come
from outside: a spare that is offered later, and the death of everything at once.
"""

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from understudy.foundation.parenthood import children_of
from understudy.ledger.exactly_once import prove
from understudy.ledger.reading import Run
from understudy.ledger.records import StepRecord
from understudy.protocol.reasons import fields_of
from understudy_testkit.faults import operator
from understudy_testkit.faults.catalogue import Fault, Kind, Place
from understudy_testkit.faults.proving import (
    NotProven,
    Outcome,
    Setup,
    fault_flags,
    launch_command,
    outcome_in,
    perform,
    require_fired,
    require_identical,
    require_success,
    steps_run_again,
)
from understudy_testkit.faults.watching import LiveRun

_LIMIT = 240.0  # seconds for one run


class Blow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Kind
    rank: int
    place: Place
    step: int
    times: int = 1


class Offer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    after_step: int
    spares: int


class Expected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`ledger`: identical (to a run without faults), exactly once (every sample of every step), same end (the state
    after the last step), stopped. `reasons`: each must be given, with these fields, for a decision whose words stand in
    what `understudy explain` tells; the first names the strategy."""

    ledger: str
    reasons: list[dict[str, Any]]
    most_again: int | None = None
    exit_code: int = 0
    output: list[str] = []


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: str
    mode: str
    ranks: int
    spares: int
    steps: int
    expect: Expected
    flags: list[str] = []
    trainee: list[str] = []
    faults: list[Blow] = []
    checkpoint_every: int = 0
    offer_spares: Offer | None = None
    kill_everything_after: int | None = None


def load_scenario(path: Path) -> Scenario:
    return msgspec.convert(tomllib.loads(path.read_text()), Scenario)


def play(path: Path, folder: Path) -> str:
    """Returns the reason that was given for the rung. NotProven when anything is not as expected."""
    scenario = load_scenario(path)
    folder.mkdir(parents=True)
    whole = _setup(scenario, folder, whole=True)
    compared = scenario.expect.ledger != "stopped"
    reference = require_success(perform(folder / "reference", whole, timeout=_LIMIT)).run if compared else None
    faults = [
        Fault(name=f"{n}-{blow.kind}-rank{blow.rank}", **msgspec.structs.asdict(blow))
        for n, blow in enumerate(scenario.faults)
    ]
    outcome = _strike(folder, scenario, faults)
    require_fired(outcome, faults)
    if outcome.exit_code != scenario.expect.exit_code:
        raise NotProven(f"{path.stem} ended with {outcome.exit_code}:\n{outcome.output[-3000:]}")
    if reference is not None:
        _check_ledger(path.stem, scenario, reference, outcome)
    return _check_words(path.stem, scenario, outcome)


def _setup(scenario: Scenario, folder: Path, whole: bool = False) -> Setup:
    """`whole`: without faults, and without anything that helps against them."""
    flags = ["--digest-every", "1", "--hang-floor", "2.0", "--busy-timeout", "5.0"]
    if not whole:
        flags += scenario.flags
        if scenario.checkpoint_every:
            flags += ["--checkpoint-dir", str(folder / "checkpoints")]
            flags += ["--checkpoint-every", str(scenario.checkpoint_every)]
        if scenario.offer_spares is not None:
            flags += operator.api_flags(folder)
    trainee = tuple(word for word in scenario.trainee if not (whole and word in ("--pause", "0.1")))
    spares = 0 if whole else scenario.spares
    return Setup(
        mode=scenario.mode,
        steps=scenario.steps,
        ranks=scenario.ranks,
        spares=spares,
        trainee=trainee,
        flags=tuple(flags),
    )


def _strike(folder: Path, scenario: Scenario, faults: list[Fault]) -> Outcome:
    setup = _setup(scenario, folder)
    if scenario.kill_everything_after is not None:
        _kill_everything(folder / "first", setup, scenario.kill_everything_after)
        return perform(folder / "second", setup, timeout=_LIMIT)
    if scenario.offer_spares is None:
        return perform(folder / "run", setup, faults, timeout=_LIMIT)
    return _with_an_offer(folder / "run", setup, faults, scenario.offer_spares)


def _with_an_offer(folder: Path, setup: Setup, faults: list[Fault], offer: Offer) -> Outcome:
    """`understudy spares N`, as soon as the step is on record."""
    began = time.monotonic()
    with _started(folder, setup, fault_flags(folder, faults)) as job:
        _wait_for_step(job, folder, offer.after_step)
        operator.command("spares", str(offer.spares), "--run", str(folder / "run"), "--reason", "one has come free")
        code = job.process.wait(_LIMIT)
    return outcome_in(folder, code, time.monotonic() - began)


def _kill_everything(folder: Path, setup: Setup, step: int) -> None:
    """All processes of the job, the launcher first, as when a machine loses its power."""
    with _started(folder, setup) as job:
        _wait_for_step(job, folder, step)
        everybody = [job.process.pid, *children_of(job.process.pid)]
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        for pid in everybody:
            os.kill(pid, signal.SIGKILL)
        job.process.wait(30)


def _started(folder: Path, setup: Setup, words: Sequence[str] = ()) -> LiveRun:
    command = [*launch_command(folder / "run", setup), *words]
    return LiveRun(command, folder / "run", folder / "output.txt", setup.ranks)


def _wait_for_step(job: LiveRun, folder: Path, step: int) -> None:
    job.wait_until(lambda: _newest(folder / "run") >= step, f"step {step}", _LIMIT)


def _newest(run_dir: Path) -> int:
    """The newest step that any rank has on record so far."""
    decoder = msgspec.json.Decoder(StepRecord)
    lines = (file.read_bytes().split(b"\n")[:-1][-1:] for file in (run_dir / "ledger").glob("steps-*.jsonl"))
    return max((decoder.decode(line).step for last in lines for line in last), default=-1)


# -- judging ----------------------------------------------------------------------------------------------------------


def _check_ledger(name: str, scenario: Scenario, reference: Run, outcome: Outcome) -> None:
    expected = scenario.expect
    match expected.ledger:
        case "identical":
            require_identical(reference, outcome.run, name)
        case "exactly once":
            proof = prove(outcome.run, reference)
            if not proof.holds or not proof.degraded:
                raise NotProven(f"{name}: {proof.sentence()}")
        case "same end":
            last = {rank: record for (step, rank), record in outcome.run.steps.items() if step == scenario.steps - 1}
            for rank in range(scenario.ranks):
                if last[rank].parameters != reference.steps[scenario.steps - 1, rank].parameters:
                    raise NotProven(f"{name}: rank {rank} ends with other parameters")
        case other:
            raise NotProven(f"{name}: nobody knows how to check for {other!r}")
    again = max(steps_run_again(outcome.run), default=0)
    if expected.most_again is not None and again > expected.most_again:
        raise NotProven(f"{name}: {again} committed steps ran again")


def _check_words(name: str, scenario: Scenario, outcome: Outcome) -> str:
    command = [sys.executable, "-m", "understudy", "explain", str(outcome.folder)]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240).stdout
    story = " ".join(told.split())
    given = [_given(name, expected, outcome, story) for expected in scenario.expect.reasons]
    for words in scenario.expect.output:
        if words not in outcome.output:
            raise NotProven(f"{name}: the job's output has no {words!r}:\n{outcome.output[-2000:]}")
    return given[0]


def _given(name: str, expected: dict[str, Any], outcome: Outcome, story: str) -> str:
    """The sentence of a decision with that reason, or with that as a part of it."""
    fields = {field: value for field, value in expected.items() if field != "code"}
    found = [
        record
        for record in outcome.run.decisions
        for part in record.why.all()
        if part.code == expected["code"] and fields.items() <= fields_of(part).items()
    ]
    if not found:
        raise NotProven(f"{name}: no decision was made because of {expected}")
    for record in found:
        if all(line in story for line in record.lines):
            return record.reason
    raise NotProven(f"{name}: `understudy explain` does not say {found[0].lines}:\n{story}")
