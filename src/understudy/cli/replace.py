"""`understudy replace --rank 3 [RUN_DIR]`: ends the process that holds a rank; a spare takes over at the same step."""

import argparse

from understudy.cli import api_actions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "Ends the process that holds a rank at once, and lets a spare take over at the same step."
    parser.add_argument("--rank", type=int, required=True, help="the rank whose process is ended")
    parser.add_argument("--member", help="only if it is still this one that holds the rank, as in m-7")
    api_actions.add_arguments(parser, text)


def main(args: argparse.Namespace) -> int:
    return api_actions.ask(args, "replace", {"rank": args.rank, "member": args.member})
