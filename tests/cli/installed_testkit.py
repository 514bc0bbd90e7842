"""The testkit's entry points as they are in this checkout, for processes that a test starts, installed or not."""

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(folder: Path, **more: dict[str, str]) -> dict[str, str]:
    """`more`: entry points of another package by group, as in understudy_emulations={"name": "module:function"}."""
    declared = tomllib.loads((ROOT / "testkit" / "pyproject.toml").read_text())["project"]["entry-points"]
    _write(folder, "understudy_testkit", declared)
    _write(folder, "made_up", {group.replace("_", ".", 1): entries for group, entries in more.items()})
    paths = (str(folder), str(ROOT / "src"), str(ROOT / "testkit" / "src"), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _write(folder: Path, package: str, groups: dict[str, dict[str, str]]) -> None:
    metadata = folder / f"{package}-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 0.1.0\n")
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{k} = {v}" for k, v in entries.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
