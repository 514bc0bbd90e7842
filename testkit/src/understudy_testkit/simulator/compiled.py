"""Translates the protocol and the simulator to C, for campaigns that take an hour: the same sources, twice as fast.

Knows how mypyc, which comes with mypy, is called, and where the result is kept: once for each state of the sources.
Used by `claims/protocol-holds --compiled` only; nothing else runs translated code.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from understudy import errors

_PRODUCT, _TESTKIT = Path(errors.__file__).parent, Path(__file__).parents[1]
_TRANSLATED = ("understudy/protocol", "understudy_testkit/simulator")
_NEEDED = (*_TRANSLATED, "understudy/foundation")  # a change elsewhere is no reason to translate again
_MESSAGES = tuple(f"understudy/protocol/{name}.py" for name in ("events", "commands", "requests"))
"""Structs of msgspec, which are C already. mypyc would drop the options of their classes (frozen, keywords only)."""
_LEFT_OUT = (
    *_MESSAGES,
    "understudy_testkit/simulator/seeded_bugs.py",  # puts other rules in the place of real ones
    "understudy_testkit/simulator/device_bugs.py",
    "understudy_testkit/simulator/device_side_bugs.py",
    "understudy_testkit/simulator/compiled.py",
)


def compiled(cache: Path, product: Path = _PRODUCT, testkit: Path = _TESTKIT) -> Path:
    """A folder for PYTHONPATH, made if it is missing; that takes minutes. `product`, `testkit`: the two packages, of
    which it gets what the simulator needs."""
    sources = {**dict(_files(product)), **dict(_files(testkit))}
    folder = cache / _key(sources)
    if (folder / "whole").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    for name, path in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)
    files = [name for name in sources if name.startswith(_TRANSLATED) and name not in _LEFT_OUT]
    made = subprocess.run(
        [str(Path(sys.executable).with_name("mypyc")), "--strict", "--ignore-missing-imports", *files],
        cwd=folder,
        env={**os.environ, "MYPYC_OPT_LEVEL": "1"},  # more takes minutes and gains little
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise errors.UnderstudyError(
            f"mypyc could not translate the protocol (a C compiler and Python's headers are needed): "
            f"{(made.stdout + made.stderr)[-1000:]}"
        )
    shutil.rmtree(folder / "build", ignore_errors=True)
    (folder / "whole").touch()
    return folder


def _files(package: Path) -> Iterator[tuple[str, Path]]:
    """What is needed of a package, by its path from the folder above it."""
    folders = [package.parent / name for name in _NEEDED if name.startswith(f"{package.name}/")]
    for path in sorted([*package.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]):
        yield str(path.relative_to(package.parent)), path


def _key(sources: dict[str, Path]) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for name, path in sources.items():
        digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]
