"""`understudy verify RUN_A RUN_B`: did the two runs train the same thing, to the last bit?"""

import argparse
from pathlib import Path

from rich.console import Console

from understudy.errors import LedgerError
from understudy.ledger.comparing import Comparison, ComparisonVerdict, compare
from understudy.ledger.exactly_once import prove
from understudy.ledger.narrative import counted
from understudy.ledger.reading import read_run
from understudy.ledger.run import OPTIONAL, Run

HELP = "compare the ledgers of two runs, step by step and rank by rank"

EXIT_CODES = {
    ComparisonVerdict.IDENTICAL: 0,
    ComparisonVerdict.DIFFERENT: 1,
    ComparisonVerdict.WEAK: 3,
    ComparisonVerdict.INCOMPLETE: 3,
    ComparisonVerdict.NOTHING: 3,
}
UNREADABLE = 2

_COLOURS = {ComparisonVerdict.IDENTICAL: "bold green", ComparisonVerdict.DIFFERENT: "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compares batches, parameters, optimizer state, random numbers and rank-local buffers of two runs. Exit code "
        "0: identical (if one began with a checkpoint, from there on); 1: different, or a run contradicts itself; "
        "3: nothing differs, but not everything could be compared: no digests were taken, or not in the same way "
        "(--ledger-digests), or records could not be written; 2: a ledger cannot be read. A run that went on without "
        "some of its ranks is never identical to one that did not; of such a run it is said whether every sample was "
        "used once."
    )
    parser.add_argument("run_a", metavar="RUN_A", type=Path, help="folder of the first run")
    parser.add_argument("run_b", metavar="RUN_B", type=Path, help="folder of the second run")


def main(args: argparse.Namespace) -> int:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    try:
        left, right = read_run(args.run_a), read_run(args.run_b)
    except LedgerError as error:
        Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(f"unreadable: {error}", style="red")
        return UNREADABLE
    result = compare(left, right)
    for name, run in (("A", left), ("B", right)):
        console.print(f"{name}  {_describe(run)}")
    console.print(f"compared  {_compared(result)}")
    for name, run, other in (("A", left, right), ("B", right, left)):
        if run.was_degraded:
            console.print(f"data of {name}  {prove(run, other).sentence()}")
    console.print(result.sentence(), style=_COLOURS.get(result.verdict, "bold yellow"))
    return EXIT_CODES[result.verdict]


def _describe(run: Run) -> str:
    digests = len(run.steps_with("parameters"))
    parts = [
        counted(run.step_count, "step"),
        counted(run.info.world_size, "rank"),
        f"digests at {counted(digests, 'step')}" if digests else "no digests",
        counted(len(run.recoveries), "recovery"),
    ]
    if run.repeated:
        parts.append(f"{counted(run.repeated, 'record')} told twice, in agreement")
    if run.began:
        parts.append(f"began at step {run.began}")
    if run.torn:
        parts.append(f"{counted(len(run.torn), 'torn last line')} left out")
    if run.conflicts:
        parts.append(f"contradicts itself {counted(len(run.conflicts), 'time')}")
    if run.shortfalls:
        parts.append(f"incomplete: {', '.join(map(str, run.shortfalls))}")
    return f"{run.path}: {', '.join(parts)}"


def _compared(result: Comparison) -> str:
    places = (max(result.steps) - max(result.began)) * max(result.ranks)
    counts = (f"{name} {count}" for name, count in result.compared.items() if count or name not in OPTIONAL)
    return f"{places} places (step x rank): {', '.join(counts)}"
