"""`understudy drain HOST [RUN_DIR]`: every rank moves away from a host, and nothing is put there any more."""

import argparse

from understudy.cli import api_actions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "Moves every rank away from a host, before it is taken away or repaired. Nothing is put there any more."
    parser.add_argument("host", metavar="HOST", help="as `understudy status` calls it")
    api_actions.add_arguments(parser, text)


def main(args: argparse.Namespace) -> int:
    return api_actions.ask(args, "drain", {"host": args.host})
