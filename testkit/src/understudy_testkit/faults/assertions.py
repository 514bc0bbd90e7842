"""Runs the training script with and without faults and compares the ledgers. Shared by claims and end-to-end tests."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from understudy.ledger.comparing import Comparison, ComparisonVerdict, compare
from understudy.ledger.reading import Run, read_run
from understudy.ledger.records import StepRecord
from understudy.protocol.commands import DecisionKind
from understudy_testkit.faults.catalogue import Fault, save_schedule
from understudy_testkit.faults.injector import fired

TRAIN_SCRIPT = ("-m", "understudy_testkit.faults.train_script")


class NotProven(Exception):
    """A claim does not hold; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a training script is started: the small one, or another that takes its arguments. Equal setups give equal
    ledgers."""

    script: tuple[str, ...] = TRAIN_SCRIPT
    mode: str = "ddp"
    steps: int = 20
    ranks: int = 4
    spares: int = 1
    script_args: tuple[str, ...] = ()
    flags: tuple[str, ...] = ("--ledger-digest-every", "1", "--step-timeout-min", "2.0", "--busy-timeout", "5.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    folder: Path
    exit_code: int
    output: str
    seconds: float
    proofs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def run(self) -> Run:
        return read_run(self.folder)


def perform(folder: Path, setup: Setup, faults: Sequence[Fault] = (), timeout: float = 600.0) -> RunOutcome:
    """One run of the training script under `understudy run`. Leaves no process behind, whatever happens."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [*launch_command(folder / "run", setup), *fault_flags(folder, faults)]
    start = time.monotonic()
    with open(folder / "output.txt", "wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            exit_code = process.wait(timeout)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)
            if isinstance(error, subprocess.TimeoutExpired):
                tail = (folder / "output.txt").read_text(errors="replace")[-3000:]
                raise NotProven(f"{folder.name} did not end within {timeout:g} s:\n{tail}") from None
            raise
    return outcome_in(folder, exit_code, time.monotonic() - start)


def fault_flags(folder: Path, faults: Sequence[Fault]) -> tuple[str, ...]:
    """For the training script: which faults strike it, and where they leave their proofs."""
    if not faults:
        return ()
    folder.mkdir(parents=True, exist_ok=True)
    save_schedule(folder / "faults.json", faults)
    return ("--faults", str(folder / "faults.json"), "--proofs", str(folder / "proofs"))


def outcome_in(folder: Path, exit_code: int, seconds: float) -> RunOutcome:
    """Of a run that has ended: `run`, `output.txt` and `proofs` are in `folder`."""
    return RunOutcome(
        folder=folder / "run",
        exit_code=exit_code,
        output=(folder / "output.txt").read_text(errors="replace"),
        seconds=seconds,
        proofs=fired(folder / "proofs"),
    )


def launch_command(run_dir: Path, setup: Setup) -> list[str]:
    return [
        *(sys.executable, "-m", "understudy", "run", "--no-progress", "--run-dir", str(run_dir)),
        *("--nproc-per-node", str(setup.ranks), "--spares", str(setup.spares), *setup.flags, *setup.script),
        *("--mode", setup.mode, "--steps", str(setup.steps), *setup.script_args),
    ]


def require_success(outcome: RunOutcome) -> RunOutcome:
    if outcome.exit_code != 0:
        raise NotProven(f"{outcome.folder.parent.name} ended with {outcome.exit_code}:\n{outcome.output[-3000:]}")
    return outcome


def require_fired(outcome: RunOutcome, faults: Sequence[Fault]) -> None:
    """Every scheduled fault left its proofs."""
    seen = [proof["fault"] for proof in outcome.proofs]
    missing = [fault.name for fault in faults if seen.count(fault.name) != fault.times]
    if missing:
        raise NotProven(f"{outcome.folder.parent.name}: these faults did not fire: {', '.join(missing)}")


def require_identical(reference: Run, run: Run, name: str) -> Comparison:
    comparison = compare(reference, run)
    if comparison.verdict is not ComparisonVerdict.IDENTICAL:
        raise NotProven(f"{name}: {comparison.sentence()}")
    return comparison


def prove_identical(folder: Path, setup: Setup, reference: Run, faults: Sequence[Fault], timeout: float) -> RunOutcome:
    """Run with faults; all of them fired, the job succeeded, and the ledger equals the reference."""
    outcome = require_success(perform(folder, setup, faults, timeout))
    require_fired(outcome, faults)
    require_identical(reference, outcome.run, folder.name)
    return outcome


def step_times(run: Run) -> dict[int, float]:
    """When each step was committed on the last of its ranks."""
    times: dict[int, float] = {}
    for (step, _rank), record in run.steps.items():
        if not record.inherited:
            times[step] = max(times.get(step, 0.0), record.at)
    return times


def steps_run_again(run: Run) -> list[int]:
    """For each time the world went back: how many steps that every rank had committed were computed again."""
    decoder = msgspec.json.Decoder(StepRecord)
    lines = (line for file in (run.path / "ledger").glob("steps-*.jsonl") for line in file.read_bytes().splitlines())
    records = [decoder.decode(line) for line in lines if line.endswith(b"}")]
    counts = []
    back_to = [(d.generation, d.step) for d in run.decisions if d.kind == DecisionKind.REWIND.value]
    for number, (generation, step) in enumerate(back_to):
        earlier = max((before for before, _ in back_to[:number]), default=0)
        ranks: dict[int, set[int]] = {}
        for record in records:
            if earlier <= record.generation < generation and step is not None and record.step >= step:
                ranks.setdefault(record.step, set()).add(record.rank)
        counts.append(sum(len(seen) == run.info.world_size for seen in ranks.values()))
    return counts


def write_report(path: Path, report: dict[str, Any]) -> None:
    path.write_text(json.dumps(report, indent=1) + "\n")
