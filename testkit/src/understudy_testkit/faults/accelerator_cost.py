"""Part F of the acceptance of accelerators: what a step costs under `understudy run`, with the fence and without,
beside the same script under torchrun. `understudy doctor --accelerators` finds it by its entry point.

The jobs run one after another, in an order that turns round from pair to pair. A step is measured over many, because
the host of a single one does not wait for its device. On an emulated device the figures mean nothing. Real devices:
untested, no GPU was at hand.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.cli.examination.accelerators.contract import Bench, Disproved, Needs, Shown, Trial
from understudy_testkit.faults.accelerator_runs import environment_of, layout_for
from understudy_testkit.faults.assertions import TRAIN_SCRIPT, NotProven, Setup, launch_command

PAIRS = 3
_LIMIT = 600.0
_WARM = 0.25  # of the steps, that do not count
BASE, OURS, UNFENCED = "torchrun", "understudy", "understudy-unfenced"
_ARMS = (BASE, OURS, UNFENCED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    steps: int
    flags: tuple[str, ...]


def _size(bench: Bench) -> Size:
    if bench.emulated:
        return Size(steps=12 if bench.quick else 60, flags=())
    wide = ("--width", "2048", "--blocks", "24", "--batch-size", "512")
    return Size(steps=200 if bench.quick else 1000, flags=wide)


def commands(bench: Bench, folder: Path) -> dict[str, list[str]]:
    """Of each arm. Its times are written to a file of its name."""
    size, layout = _size(bench), layout_for(bench.devices)
    made = {}
    for arm in _ARMS:
        flags = ("--device", bench.device, "--fast", *size.flags, "--times", str(folder / f"{arm}.json"))
        if arm == BASE:
            made[arm] = [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(layout.ranks)),
                *("--log-dir", str(folder / "torchrun"), *TRAIN_SCRIPT, "--mode", "ddp", "--steps", str(size.steps)),
                *flags,
            ]
            continue
        mutant = ("--mutant", "twins-unfenced") if arm == UNFENCED else ()
        setup = Setup(
            steps=size.steps, ranks=layout.ranks, spares=layout.spares, script_args=(*flags, *mutant), flags=()
        )
        made[arm] = launch_command(folder / f"run-{arm}", setup)
    return made


def run(command: Sequence[str], output: Path) -> None:
    with output.open("wb") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            code = process.wait(_LIMIT)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)
            raise
    if code != 0:
        raise NotProven(f"{output.stem} ended with {code}:\n{output.read_text(errors='replace')[-1500:]}")


def seconds_per_step(commits: Sequence[float]) -> float:
    """From moments of rank 0, once it is warm."""
    first = int(len(commits) * _WARM)
    return (commits[-1] - commits[first]) / (len(commits) - 1 - first)


def _cost(bench: Bench) -> Shown:
    measured: dict[str, list[float]] = {arm: [] for arm in _ARMS}
    pairs = 1 if bench.quick else PAIRS
    try:
        with environment_of(bench):
            for pair in range(pairs):
                folder = bench.folder() / f"pair-{pair}"
                folder.mkdir()
                for arm, command in sorted(commands(bench, folder).items(), reverse=bool(pair % 2)):
                    run(command, folder / f"{arm}.txt")
                    measured[arm].append(seconds_per_step(json.loads((folder / f"{arm}.json").read_text())["commits"]))
                bench.tell(f"pair {pair + 1} of {pairs}")
    except (NotProven, subprocess.TimeoutExpired) as failure:
        raise Disproved(str(failure), "send the archive back") from None
    return judged(measured, bench.emulated)


def judged(measured: Mapping[str, Sequence[float]], emulated: bool) -> Shown:
    """Only told: what is too much is for the user to say."""
    typical = {arm: statistics.median(seconds) for arm, seconds in measured.items()}
    ratios = {arm: typical[arm] / typical[BASE] for arm in (OURS, UNFENCED)}
    told = f"a step takes {ratios[OURS]:.4f} of torchrun's, without the fence {ratios[UNFENCED]:.4f}"
    if emulated:
        told = "the jobs ran; figures of an emulated device mean nothing"
    return Shown(
        told, {"seconds_per_step": {arm: list(seconds) for arm, seconds in measured.items()}, "ratios": ratios}
    )


def trials(_bench: Bench) -> Sequence[Trial]:
    return (Trial(name="pairs", carry_out=_cost, needs=Needs(devices=2)),)
