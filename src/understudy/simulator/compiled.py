"""Translates the protocol and the simulator to C, for campaigns that take an hour: the same sources, twice as fast.

Knows how mypyc, which comes with mypy, is called, and where the result is kept: once for each state of the sources.
Used by `claims/protocol-holds --compiled` only; nobody else runs translated code.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from understudy.errors import UnderstudyError

_PACKAGES = ("protocol", "simulator")
_NEEDED = frozenset({*_PACKAGES, "foundation"})  # a change elsewhere is no reason to translate again
_LEFT_OUT = frozenset({"planted.py", "compiled.py"})  # the first puts other rules in the place of real ones


def compiled(cache: Path, source: Path = Path(__file__).parents[1]) -> Path:
    """A folder for PYTHONPATH, made if it is missing; that takes minutes. `source`: this package."""
    folder = cache / _key(source)
    if (folder / "whole").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    for path in _files(source):
        copy = folder / "understudy" / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    files = [str(path.relative_to(folder)) for name in _PACKAGES for path in _modules(folder / "understudy" / name)]
    made = subprocess.run(
        [str(Path(sys.executable).with_name("mypyc")), "--strict", "--ignore-missing-imports", *files],
        cwd=folder,
        env={**os.environ, "MYPYC_OPT_LEVEL": "1"},  # more takes minutes and gains little
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise UnderstudyError(
            f"mypyc could not translate the protocol (a C compiler and Python's headers are needed): "
            f"{(made.stdout + made.stderr)[-1000:]}"
        )
    shutil.rmtree(folder / "build", ignore_errors=True)
    (folder / "whole").touch()
    return folder


def _modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.py") if path.name not in _LEFT_OUT)


def _files(source: Path) -> list[Path]:
    folders = [path for path in source.iterdir() if path.name in _NEEDED]
    return sorted([*source.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))])


def _key(source: Path) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in _files(source):
        digest.update(str(path.relative_to(source)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]
