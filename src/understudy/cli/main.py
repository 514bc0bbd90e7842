"""The command line: one subcommand per file. Modules of other commands are not imported."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version

from understudy.errors import UsageError

_COMMANDS = {
    "run": ("understudy.cli.run", "run a training script with spares (the flags of torchrun, plus --spares)"),
    "coordinator": ("understudy.cli.coordinator", "decide for a job on many hosts; one of several coordinators leads"),
    "config": ("understudy.cli.config", "check configuration files, and compare those of several hosts"),
    "certs": ("understudy.cli.certs", "make certificates for trying out many hosts"),
    "status": ("understudy.cli.status", "show a running job: ranks, spares, the last recovery"),
    "events": ("understudy.cli.events", "show what was decided in a running job, and why"),
    "migrate": ("understudy.cli.migrate", "move ranks to spares at a step boundary"),
    "drain": ("understudy.cli.drain", "move every rank away from a host"),
    "undrain": ("understudy.cli.undrain", "let ranks go to a host again"),
    "replace": ("understudy.cli.replace", "end the process of a rank now; a spare takes over"),
    "spares": ("understudy.cli.spares", "keep so many spares ready from now on"),
    "verify": ("understudy.cli.verify", "compare the ledgers of two runs, step by step"),
    "explain": ("understudy.cli.explain", "tell what happened in a run, and why"),
    "doctor": ("understudy.cli.doctor", "look at this host and at a run: what would keep a rank from being replaced"),
    "bench": ("understudy.cli.bench", "compare approaches under the same faults, and write the report"),
}
USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    only = given[0] if given else None
    args = build_parser(only).parse_args(given)
    module = import_module(_COMMANDS[args.command][0])
    try:
        if getattr(args, "config", None) is not None:
            args = build_parser(only, _configured(args)).parse_args(given)
        code: int = module.main(args)
    except UsageError as error:
        print(f"understudy: error: {error}", file=sys.stderr)
        return USAGE_ERROR
    return code


def _configured(args: argparse.Namespace) -> Mapping[str, object]:
    from understudy.cli.config_file import read_config

    return read_config(args.config).defaults(args.command)


def build_parser(only: str | None = None, defaults: Mapping[str, object] | None = None) -> argparse.ArgumentParser:
    """`only`: the command whose flags are wanted; the others are listed, but their modules stay unread. `defaults`: of
    its flags, instead of their own."""
    parser = argparse.ArgumentParser(
        prog="understudy",
        description="A spare process takes over a dead training rank at the same step, while the others stay in "
        "their loop.",
    )
    parser.add_argument("--version", action="version", version=f"understudy {version('understudy')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, (module, help_text) in _COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text)
        if name == only:
            import_module(module).add_arguments(command)
            command.set_defaults(**(defaults or {}))
    return parser
