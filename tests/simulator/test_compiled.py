"""The protocol and the simulator as C: made once for each state of the sources."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from understudy.errors import UnderstudyError
from understudy_testkit.simulator.compiled import compiled

_HEADERS = Path(sysconfig.get_paths()["include"], "Python.h")
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("cc") is None or not _HEADERS.exists(), reason="no C compiler or no headers"),
]


def sources(folder: Path, rule: str) -> tuple[Path, Path]:
    """A product and a testkit of a few lines."""
    product, testkit = folder / "understudy", folder / "understudy_testkit"
    for package in (product, product / "protocol", testkit, testkit / "simulator"):
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
    (product / "protocol" / "rule.py").write_text(rule)
    (testkit / "simulator" / "game.py").write_text(
        "from understudy.protocol import rule\n\n\ndef play() -> int:\n    return rule.limit(4)\n"
    )
    (testkit / "simulator" / "seeded_bugs.py").write_text("FOUND = True\n")
    return product, testkit


def told_by(folder: Path, what: str) -> str:
    modules = "from understudy.protocol import rule; from understudy_testkit.simulator import game, seeded_bugs"
    question = f"{modules}; print({what})"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-P", "-c", question], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_rules_are_translated_once_and_again_when_they_change(tmp_path: Path) -> None:
    rule = "def limit(hosts: int) -> int:\n    return 2 * hosts\n"
    made = compiled(tmp_path / "cache", *sources(tmp_path, rule))
    assert told_by(made, "game.play()") == "8"
    assert told_by(made, "rule.__file__").endswith(".so") and told_by(made, "game.__file__").endswith(".so")
    assert told_by(made, "seeded_bugs.__file__").endswith(".py")  # it puts other rules in the place of real ones
    before = (made / "whole").stat().st_mtime_ns
    assert compiled(tmp_path / "cache", tmp_path / "understudy", tmp_path / "understudy_testkit") == made
    assert (made / "whole").stat().st_mtime_ns == before
    other = compiled(tmp_path / "cache", *sources(tmp_path, rule.replace("2 *", "3 *")))
    assert other != made
    assert told_by(other, "game.play()") == "12"


def test_what_cannot_be_translated_is_told_and_not_kept(tmp_path: Path) -> None:
    packages = sources(tmp_path, "def limit(hosts: int) -> int:\n    return 'two'\n")
    for _ in range(2):
        with pytest.raises(UnderstudyError, match="mypyc could not translate the protocol"):
            compiled(tmp_path / "cache", *packages)
