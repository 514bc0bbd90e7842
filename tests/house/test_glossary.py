"""Each word of the glossary is defined once, in alphabetical order, and the words that a meaning uses are there too."""

import re
from collections import Counter
from pathlib import Path

GLOSSARY = Path(__file__).parents[2] / "GLOSSARY.md"


def words() -> list[str]:
    """A row defines one word: `| **word** | meaning |`."""
    rows = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("| **")]
    return [re.match(r"\| \*\*([^*]+)\*\* \| \S", row)[1] for row in rows]  # type: ignore[index]


def test_each_word_is_defined_once() -> None:
    assert [word for word, count in Counter(word.lower() for word in words()).items() if count > 1] == []


def test_words_are_in_order() -> None:
    for section in GLOSSARY.read_text().split("\n## ")[1:]:
        found = re.findall(r"^\| \*\*([^*]+)\*\*", section, re.MULTILINE)
        assert found == sorted(found, key=str.lower), section.partition("\n")[0]


def test_words_that_a_meaning_points_to_are_defined() -> None:
    known = {word.lower() for word in words()}
    pointed = set(re.findall(r"\*([a-z][a-z -]+)\*(?!\*)", GLOSSARY.read_text()))
    assert {word for word in pointed if not {word, word.removesuffix("s")} & known} == set()
