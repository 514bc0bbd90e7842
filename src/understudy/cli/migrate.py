"""`understudy migrate --rank 3 [RUN_DIR]`: ranks move to spares at a step boundary; training goes on until then."""

import argparse

from understudy.cli import api_actions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "Moves ranks to spares at a step boundary; the process that leaves hands its own state over."
    parser.add_argument("--rank", type=int, action="append", required=True, help="may be given several times")
    api_actions.add_arguments(parser, text)


def main(args: argparse.Namespace) -> int:
    return api_actions.ask(args, "migrate", {"ranks": args.rank})
