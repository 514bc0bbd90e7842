"""`understudy spares 2 [RUN_DIR]`: a host keeps so many spares ready from now on, also where there were none."""

import argparse

from understudy.cli import api_actions
from understudy.protocol.hosts import THIS_HOST


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "Lets a host keep so many spares ready from now on. Ranks that the job goes on without come back with them."
    parser.add_argument("spares", type=int, help="how many")
    parser.add_argument("--host", default=THIS_HOST, help="of many: which one")
    api_actions.add_arguments(parser, text)


def main(args: argparse.Namespace) -> int:
    return api_actions.ask(args, "spares", {"host": args.host, "spares": args.spares})
