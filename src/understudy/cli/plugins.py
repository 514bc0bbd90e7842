"""`understudy plugins`: which plugins there are, ours and those of installed packages, and what their suites said.

The suites come with understudy-testkit: one entry point per kind in the group `understudy.suites`, each a function
`check(make)`, for stores `check(make, address)`. It raises when the plugin breaks the contract. What a suite said is
kept in the user's cache folder, by the version of the package.
"""

import argparse
import contextlib
import datetime
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from understudy.errors import PluginError
from understudy.files.private import make_private_folder, write_private
from understudy.foundation.printable import printable
from understudy.foundation.settings import cache_folder
from understudy.plugins.kinds import KINDS, STORE, Kind
from understudy.plugins.registry import Plugin, find

GROUP = "understudy.suites"
_PASSED, _FAILED = "passed", "FAILED"
_LARGEST = 1 << 20  # bytes of the kept results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Lists detectors, responses, stores, communicators, devices, schedulers and webhooks, ours and those of "
        "installed packages: the package and its version, the version of the contract, whether it can be used, and "
        "what its conformance suite said last (docs/plugins.md). Exit code 0; 1 when a plugin of another package "
        "cannot be used, or its suite fails."
    )
    parser.add_argument("--check", action="store_true", help="run the suites now; needs understudy-testkit")
    text = "address of a store on which the suite of that store is run, as in etcd://localhost:2379; for --check"
    parser.add_argument("--store", default="", help=text)
    parser.add_argument("--kind", choices=[kind.name for kind in KINDS], help="only plugins of this kind")


@dataclass(frozen=True, slots=True)
class Row:
    plugin: Plugin
    problem: str  # empty: it can be used
    suite: str

    @property
    def wrong(self) -> bool:
        return self.suite.startswith(_FAILED) or (bool(self.problem) and not self.plugin.built_in)


def main(args: argparse.Namespace) -> int:
    results = _read(_file())
    suites = {entry.name: entry for entry in entry_points(group=GROUP)} if args.check else None
    kinds = [kind for kind in KINDS if args.kind in (None, kind.name)]
    rows = [_examine(plugin, suites, args.store, results) for kind in kinds for plugin in find(kind)]
    for line in _table(kinds, rows):
        print(printable(line))
    if args.check:
        with contextlib.suppress(OSError):  # only a convenience
            make_private_folder(_file().parent)
            write_private(_file(), json.dumps(results, indent=1).encode())
    return int(any(row.wrong for row in rows))


def _examine(plugin: Plugin, suites: Mapping[str, EntryPoint] | None, store: str, results: dict[str, str]) -> Row:
    try:
        plugin.make()
    except PluginError as error:
        return Row(plugin, str(error), "")
    if suites is None:
        return Row(plugin, "", results.get(_key(plugin), "not run yet"))
    said = _run_suite(plugin, suites.get(plugin.kind.name), store)
    if said.startswith((_PASSED, _FAILED)):
        results[_key(plugin)] = f"{said} ({datetime.date.today().isoformat()})"
    return Row(plugin, "", said)


def _run_suite(plugin: Plugin, suite: EntryPoint | None, store: str) -> str:
    if suite is None:
        return "not run: pip install understudy-testkit"
    address = "memory" if plugin.name == "memory" else store
    if plugin.kind is STORE and address.partition(":")[0] != plugin.name:
        return f"not run: give --store {plugin.name}://..."
    try:
        check: Callable[..., None] = suite.load()
    except Exception as error:
        return f"not run: {type(error).__name__}: {error}"
    try:
        check(plugin.make, *((address,) if plugin.kind is STORE else ()))
    except Exception as error:
        if why := getattr(error, "not_run", ""):
            return f"not run: {why}"
        return f"{_FAILED}: {error}" if isinstance(error, AssertionError) else f"{_FAILED}: {error!r}"
    return _PASSED


def _table(kinds: list[Kind], rows: list[Row]) -> Iterator[str]:
    cells = [
        (
            *(row.plugin.kind.name, row.plugin.name, f"{row.plugin.package} {row.plugin.version}"),
            *(f"contract {row.plugin.kind.version}", "left out" if row.problem else "usable"),
        )
        for row in rows
    ]
    widths = [max((len(cell) for cell in column), default=0) for column in zip(*cells, strict=True)]
    for row, texts in zip(rows, cells, strict=True):
        line = "  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True))
        yield f"{line}  {row.problem or f'suite: {row.suite}'}"
    for kind in kinds:
        if not any(row.plugin.kind is kind for row in rows):
            yield f"{kind.name}: none; understudy has none itself yet"


# -- what was said before ---------------------------------------------------------------------------------------------


def _file() -> Path:
    return cache_folder() / "suites.json"


def _key(plugin: Plugin) -> str:
    kind = plugin.kind
    return f"{kind.name} {plugin.name} {plugin.package} {plugin.version} contract {kind.version}"


def _read(file: Path) -> dict[str, str]:
    """Whatever is wrong with the file, the suites can be run again."""
    try:
        with file.open("rb") as opened:
            found = json.loads(opened.read(_LARGEST))
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
