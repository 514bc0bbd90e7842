"""A former name of a flag is accepted and not used: documents, claims, examples, units and tests have today's names."""

import re
from pathlib import Path

from understudy.cli.former_names import FLAGS

ROOT = Path(__file__).parents[2]
PLACES = ("README.md", "SECURITY.md", "claims", "deploy", "docs", "examples", "scenarios", "src", "testkit", "tests")
EXCEPT = (
    "src/understudy/cli/former_names.py",
    "tests/cli/test_former_names.py",
    "tests/faults/test_spelling.py",
)
FORMER = re.compile(r"(?<![\w-])(" + "|".join(map(re.escape, FLAGS)) + r")(?![\w-])")


def texts() -> list[Path]:
    found = [
        path for place in PLACES for path in ((ROOT / place).rglob("*") if (ROOT / place).is_dir() else [ROOT / place])
    ]
    return [path for path in found if path.is_file() and path.suffix not in (".pyc", ".png", ".so")]


def test_no_former_flag_is_used() -> None:
    used = {}
    for path in texts():
        name = str(path.relative_to(ROOT))
        if name not in EXCEPT and (flags := FORMER.findall(path.read_text("utf-8", errors="replace"))):
            used[name] = sorted(set(flags))
    assert used == {}


def test_new_names_are_no_former_ones() -> None:
    assert not set(FLAGS.values()) & set(FLAGS)
