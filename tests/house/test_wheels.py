"""What a user installs: the product's wheel, built as it would be for a release, without a network."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.house.sources import ROOT

TEST_EQUIPMENT = {"benchmark", "conformance", "faults", "simulator", "testkit", "tests", "understudy_testkit"}
LARGEST = 820_000  # bytes; a wheel that outgrows it has got something that is worth a look


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a build leaves files beside what it reads
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("src", "testkit"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    command = [
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-input", "--no-index"),
        *("--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)),
    ]
    subprocess.run(command, check=True, timeout=240)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_no_test_equipment(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        modules = [Path(name) for name in packed.namelist() if name.endswith(".py")]
        lines = sum(packed.read(str(path)).count(b"\n") for path in modules)
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, {len(modules)} modules, {lines:,} lines")
    assert len(modules) > 100 and {path.parts[0] for path in modules} == {"understudy"}
    assert [str(path) for path in modules if TEST_EQUIPMENT & {*path.parts, path.stem}] == []
    assert wheel.stat().st_size < LARGEST


def test_both_packages_have_one_version() -> None:
    product, testkit = _project(ROOT), _project(ROOT / "testkit")
    assert product["version"] == testkit["version"]
    assert testkit["dependencies"] == [f"understudy=={product['version']}"]


def _project(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project
