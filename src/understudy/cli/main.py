"""The command line: one subcommand per file, and those of other packages. Only one command's module is imported."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from understudy.cli import former_names, other_packages
from understudy.errors import UsageError

_ABBREVIATIONS = False
"""argparse looks at the arguments of a training script as well: one of its own that two of our flags begin with
(`train.py --step-time 3`) would be refused as ambiguous."""

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
    "plugins": ("understudy.cli.plugins", "list detectors, stores, webhooks and other plugins, and check them"),
    "doctor": ("understudy.cli.doctor", "look at this host and at a run: what would keep a rank from being replaced"),
}
USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    only = given[0] if given else None
    try:
        args = build_parser(only).parse_args(given)
        if getattr(args, "config", None) is not None:
            args = build_parser(only, _configured(args)).parse_args(given)
        code: int = args.carry_out(args)
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
        command = commands.add_parser(name, help=help_text, description=help_text, allow_abbrev=_ABBREVIATIONS)
        if name == only:
            _fill(command, import_module(module), defaults)
    if only not in _COMMANDS:  # else the metadata of all installed packages is not worth reading
        _add_other_packages(commands, only)
    return parser


def _add_other_packages(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", only: str | None) -> None:
    found = other_packages.find_commands()
    other_packages.require(only or "", found)
    for name, entry in found.items():
        if name not in _COMMANDS:
            about = f"a command of {entry.dist.name if entry.dist else entry.value}"
            command = commands.add_parser(name, help=about, allow_abbrev=_ABBREVIATIONS)
            if name == only:
                _fill(command, entry.load(), None)


def _fill(command: argparse.ArgumentParser, module: ModuleType, defaults: Mapping[str, object] | None) -> None:
    module.add_arguments(command)
    former_names.accept_flags(command)
    command.set_defaults(**(defaults or {}), carry_out=module.main)
