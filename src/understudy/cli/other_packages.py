"""Commands of other packages: their entry points in the group `understudy.commands`.

An entry point names a module with `add_arguments(parser)` and `main(args) -> int`, as the modules of this folder have
them. Only the metadata of packages is read here; a module is imported when its command is called.
"""

from importlib.metadata import EntryPoint, entry_points

from understudy.errors import UsageError

GROUP = "understudy.commands"
_OURS = {"bench": "understudy-testkit"}  # commands that the documents name, and the package that brings them


def find_commands() -> dict[str, EntryPoint]:
    return {found.name: found for found in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def require(command: str, found: dict[str, EntryPoint]) -> None:
    """UsageError when a command of ours is called whose package is not installed."""
    if command in _OURS and command not in found:
        raise UsageError(f"`understudy {command}` comes with another package: pip install {_OURS[command]}")
