"""Other versions of Understudy beside this one: the previous release as a wheel, and this version under another number.

An installation is a folder for `PYTHONPATH`. Nothing is downloaded; what this version depends on is used by all.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import understudy
from understudy.cli.former_names import FLAGS
from understudy.wire.versions import PROTOCOL
from understudy_testkit.faults.assertions import NotProven

PACKAGE = Path(understudy.__file__).resolve().parent
TESTKIT = Path(__file__).resolve().parents[1]
REPOSITORY = TESTKIT.parents[2]
_PARTS = ("pyproject.toml", "README.md", "LICENSE", "src", "testkit")  # of which wheels are built
_BUILD_TIMEOUT = 300.0  # seconds
_FORMER_MODULES = {"understudy_testkit.faults.train_script": "understudy_testkit.faults.trainee"}


class NoHistory(Exception):
    """The previous release is not in this clone; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Release:
    """`name`: of its tag, or what else it is called. `commit`: whose source it is."""

    name: str
    commit: str


def previous(before_any: str) -> Release:
    """The newest release tag below this commit; `before_any` counts as the release while there is none."""
    told = _git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^")
    name = told.stdout.decode().strip() if told.returncode == 0 else before_any
    return find(name)


def find(name: str) -> Release:
    """Raises `NoHistory` if there is no such commit in this clone."""
    told = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if told.returncode != 0:
        why = told.stderr.decode(errors="replace").strip() or f"{name} is not in the history of this clone"
        raise NoHistory(f"{why}; a shallow clone gets it with: git fetch --unshallow --tags")
    commit = told.stdout.decode().strip()
    return Release(name if len(name) < 20 else commit[:7], commit)


def install(release: Release, folder: Path) -> Path:
    """Wheels are built from its source, without a network, and unpacked. Returns the installation."""
    source, site = folder / "source", folder / "site"
    there = _git("ls-tree", "--name-only", release.commit, *_PARTS).stdout.decode().split()
    archive = _git("archive", "--format=tar", release.commit, *there)
    if archive.returncode != 0:
        raise NoHistory(f"its source cannot be read: {archive.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(source, filter="data")
    _unpack_wheel(release, source, folder / "wheels", site)
    if "testkit" in there:
        _unpack_wheel(release, source / "testkit", folder / "testkit-wheels", site)
    else:
        _add_testkit(site)
    return _compiled(site)


def _unpack_wheel(release: Release, source: Path, wheels: Path, site: Path) -> None:
    command = [
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-input"),
        *("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(wheels), str(source)),
    ]
    built = subprocess.run(command, env=_plain(), capture_output=True, check=False, timeout=_BUILD_TIMEOUT)
    if built.returncode != 0:
        raise NotProven(f"no wheel of {release.name}: {built.stderr.decode(errors='replace')[-2000:]}")
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)


def _add_testkit(site: Path) -> None:
    """Early releases have their test equipment in the product; its modules get the names that they have today, so that
    one command starts the training script of any release."""
    package = site / "understudy_testkit"
    package.mkdir()
    (package / "__init__.py").write_text("import understudy\n\n__path__ = understudy.__path__\n")


def renumbered(protocol: int, folder: Path) -> Path:
    """This version, as one that has another protocol number, and is called by it."""
    for package in (PACKAGE, TESTKIT):
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / PACKAGE.name / "wire" / "versions.py"
    text, found = file.read_text(), f"\nPROTOCOL = {PROTOCOL}\n"
    if text.count(found) != 1:
        raise NotProven(f"{file.name} does not say its number in one line")
    file.write_text(text.replace(found, f"\nPROTOCOL = {protocol}\n"))
    metadata = folder / f"{PACKAGE.name}-0.{protocol}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE.name}\nVersion: 0.{protocol}\n")
    return _compiled(folder)


def spelled(arguments: Sequence[str], installation: Path) -> list[str]:
    """A command line with the names of flags and modules that this installation knows. Releases from before there were
    former names know only those."""
    if (installation / PACKAGE.name / "cli" / "former_names.py").exists():
        return list(arguments)
    former = {**{name: old for old, name in FLAGS.items()}, **_FORMER_MODULES}
    return [former.get(argument, argument) for argument in arguments]


def run_by(installation: Path, command: Sequence[str]) -> list[str]:
    """The command line of `python -m understudy ...`, carried out by this installation in the same process."""
    return ["env", f"PYTHONPATH={installation}", *spelled(command, installation)]


def ask(installation: Path, *command: str) -> str:
    """What a Python says that runs this installation."""
    environment = {**os.environ, "PYTHONPATH": str(installation)}
    told = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False, timeout=_BUILD_TIMEOUT
    )
    if told.returncode != 0:
        raise NotProven(f"{installation}: {told.stderr[-2000:]}")
    return told.stdout


def _compiled(site: Path) -> Path:
    """Once; else each of many processes would do it, where no bytecode is written."""
    environment = {name: value for name, value in _plain().items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "compileall", "-q", str(site)]
    subprocess.run(command, env=environment, check=False, timeout=_BUILD_TIMEOUT)
    return site


def _plain() -> dict[str, str]:
    """Without this version on the path."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _git(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(["git", "-C", str(REPOSITORY), *arguments], capture_output=True, check=False, timeout=60)
    except FileNotFoundError:
        raise NoHistory("the program git is missing") from None
