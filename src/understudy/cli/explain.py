"""`understudy explain RUN`: what happened, why, and how long it took."""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from understudy.errors import LedgerError
from understudy.ledger import goodput
from understudy.ledger.narrative import Block, tell
from understudy.ledger.reading import read_run

HELP = "tell the narrative of a run: every loss, decision and recovery, with its reason"

UNREADABLE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Tells what happened in a run. Exit code 0; 2 when the ledger cannot be read."
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of the run")


def main(args: argparse.Namespace) -> int:
    try:
        narrative = tell(read_run(args.run))
        account = goodput.read(args.run)
    except LedgerError as error:
        print(f"unreadable: {error}", file=sys.stderr)
        return UNREADABLE
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for block in (narrative.heading, *narrative.recoveries, *narrative.sections):
        _print(console, block)
    console.print("summary", style="bold")
    console.print(f"  {narrative.summary.sentence()}")
    if account is not None:
        console.print(f"  {account.sentence()}")
    return 0


def _print(console: Console, block: Block) -> None:
    """A headline, then its lines with the labels in one column; a label is not repeated."""
    console.print(block.title, style="bold")
    width = max((len(label) for label, _ in block.lines), default=0)
    before = ""
    for label, text in block.lines:
        shown = "" if label == before else label
        console.print(Text.assemble((f"  {shown:{width}}  ", "dim"), text))
        before = label
    console.print()
