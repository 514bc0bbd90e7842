"""As much of a package as pip would leave for Python to find its plugins."""

from collections.abc import Mapping
from pathlib import Path

import pytest

FINE = "class Fine:\n    contract_version = 1\n\n    def look(self, look):\n        return ()\n"
"""A module with a detector that works."""


def install(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    entries: Mapping[str, Mapping[str, str]],
    modules: Mapping[str, str] | None = None,
    version: str = "1.0",
) -> None:
    """`entries`: what the entry points of each group name. `modules`: their source, by name; names must be used once in
    all tests, because Python remembers a module."""
    site = folder / package
    metadata = site / f"{package.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    lines = [
        line
        for group, found in entries.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in found.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for name, source in (modules or {}).items():
        (site / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(site))
