"""A sentence of the product names its subject: a rank, a member, a host, a process, not "who" or "nobody".

Sentences are comments and strings. A name in backquotes is no sentence, and neither is a string of one word, such as
the key of a field. `whose` is allowed: it is also the possessive of a thing.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.house.sources import PRODUCT

HELD = tuple(sorted(folder.parent.name for folder in PRODUCT.glob("*/__init__.py")))

_PEOPLE = re.compile(r"\b(who|whoever|whom|nobody|somebody|anybody|everybody|someone|anyone|everyone)\b", re.IGNORECASE)
_NAME = re.compile(r"`[^`\n]*`")


def sentences(code: str) -> Iterator[tuple[int, str]]:
    """Comments and strings, each with its line. Of an f-string only the text between the braces' expressions."""
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not node.value.isidentifier():
            yield node.lineno, node.value


def words(code: str) -> list[tuple[int, str]]:
    """Words for people, each with the line in which its sentence begins."""
    return sorted((line, word) for line, text in sentences(code) for word in _PEOPLE.findall(_NAME.sub("", text)))


def words_of(package: Path) -> list[str]:
    found = ((path, *hit) for path in sorted(package.rglob("*.py")) for hit in words(path.read_text()))
    return [f"{path.relative_to(PRODUCT)}:{line}: {word}" for path, line, word in found]


@pytest.mark.parametrize("package", HELD)
def test_sentences_name_their_subject(package: str) -> None:
    assert (PRODUCT / package / "__init__.py").is_file()
    assert words_of(PRODUCT / package) == []


@pytest.mark.parametrize(
    "code",
    [
        "x = 1  # who waits",
        '"""Nobody waits."""',
        "x = 'nothing that anyone holds'",
        "x = f'{y} is somebody\\'s'",
        "# `who` is whoever asked",
    ],
)
def test_words_for_people_are_found(code: str) -> None:
    assert len(words(code)) == 1


@pytest.mark.parametrize(
    "code",
    [
        "# a host whose agent is gone",
        "x = record['who']",
        "x = f'{who} is gone'",
        "who = 'rank 1'",
        '"""`who`: the name of its token."""',
        "x = 'the whole world'",
    ],
)
def test_other_words_and_names_are_not(code: str) -> None:
    assert words(code) == []
