"""What a newcomer reads first: the README is short, its links lead somewhere, and the page of claims is complete."""

import os
import re
from pathlib import Path

import pytest
from docs.tools import recovery_picture, site

ROOT = Path(__file__).parents[2]
_MOST_LINES = 150
_PAGES_THAT_NAME_FILES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/internals.md")
_ROW = re.compile(r"\| \[`claims/([a-z-]+)`\]\(\.\./claims/([a-z-]+)\)(?: `--quick`)? \|$")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= _MOST_LINES


@pytest.mark.parametrize("page", site.pages(ROOT), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    lost = [target for target in site.linked(page) if not (page.parent / target).exists()]
    assert not lost


def test_every_claim_has_exactly_one_row() -> None:
    rows = [row for line in (ROOT / "docs" / "claims.md").read_text().splitlines() if (row := _ROW.search(line))]
    assert all(row[1] == row[2] for row in rows)
    claims = [path.name for path in (ROOT / "claims").iterdir() if path.is_file() and os.access(path, os.X_OK)]
    assert sorted(row[1] for row in rows) == sorted(claims)


def test_every_row_of_a_claim_is_whole() -> None:
    """Sentence, figure, machine, date and command."""
    for line in (ROOT / "docs" / "claims.md").read_text().splitlines():
        if _ROW.search(line):
            sentence, figure, machine, date, command = (cell.strip() for cell in line.strip("|").split("|"))
            assert sentence and figure and machine and command, line
            assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", date), line


def test_the_readme_says_how_many_claims_there_are() -> None:
    claims = [path for path in (ROOT / "claims").iterdir() if path.is_file()]
    assert f"all {len(claims)} with figure" in (ROOT / "README.md").read_text()


def test_the_picture_is_drawn_from_the_recorded_run() -> None:
    drawn = recovery_picture.draw(recovery_picture.TEXT.read_text())
    assert recovery_picture.PICTURE.read_text() == drawn, "run `python docs/tools/recovery_picture.py draw`"


@pytest.mark.parametrize("page", _PAGES_THAT_NAME_FILES)
def test_files_that_a_page_names_exist(page: str) -> None:
    """`folder/file.py` is a file of the product, of the tests or of the documents, wherever its package is."""
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", (ROOT / page).read_text()))
    known = [
        path.relative_to(ROOT).as_posix()
        for top in ("src", "testkit", "tests", "docs")
        for path in (ROOT / top).rglob("*.py")
    ]
    assert named
    assert {name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in known)} == set()


def test_the_walk_of_a_recovery_goes_through_at_most_twelve_files() -> None:
    walk = (ROOT / "ARCHITECTURE.md").read_text().partition("## The walk")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| `([a-z]+(?:/[a-z_0-9]+)+\.py)` \|", walk, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert len({file for _, file in rows}) == len(rows) <= 12
    assert "twelve files carry" in walk and len(rows) == 12
