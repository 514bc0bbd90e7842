"""`understudy verify RUN_A RUN_B`: did the two runs train the same thing, to the last bit?"""

import argparse
from pathlib import Path

from rich.console import Console

from understudy.errors import LedgerError
from understudy.ledger.comparing import Comparison, Verdict, compare
from understudy.ledger.exactly_once import prove
from understudy.ledger.reading import Run, read_run
from understudy.ledger.story import counted

HELP = "compare the ledgers of two runs, step by step and rank by rank"

EXIT_CODES = {Verdict.IDENTICAL: 0, Verdict.DIFFERENT: 1, Verdict.WEAK: 3, Verdict.NOTHING: 3}
UNREADABLE = 2

_COLOURS = {Verdict.IDENTICAL: "bold green", Verdict.DIFFERENT: "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compares batches, parameters, optimizer state and random numbers of two runs. Exit code 0: identical; "
        "1: different; 3: nothing to compare, or no digests were taken; 2: a ledger cannot be read. A run that went on "
        "without some of its ranks is never identical to one that did not; of such a run it is said whether every "
        "sample was used once."
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
    if run.torn:
        parts.append(f"{counted(len(run.torn), 'torn last line')} left out")
    return f"{run.path}: {', '.join(parts)}"


def _compared(result: Comparison) -> str:
    places = max(result.steps) * max(result.ranks)
    counts = ", ".join(f"{field} {count}" for field, count in result.compared.items())
    return f"{places} places (step x rank): {counts}"
