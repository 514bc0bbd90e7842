"""`understudy undrain HOST [RUN_DIR]`: ranks may go to a host again."""

import argparse

from understudy.cli import api_actions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = (
        "Lets ranks and spares go to a host again: calls off its drain, and ends the quarantine of a host that was "
        "lost or on which spares died."
    )
    parser.add_argument("host", metavar="HOST", help="as `understudy status` calls it")
    api_actions.add_arguments(parser, text)


def main(args: argparse.Namespace) -> int:
    return api_actions.ask(args, "undrain", {"host": args.host})
