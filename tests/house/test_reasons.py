"""A reason is a code with fields: every code has words, every use gives their fields, and no program reads words."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from string import Formatter

import pytest
from tests.house.sources import ROOT

from understudy.protocol.advice import ADVICE
from understudy.protocol.reasons import Code
from understudy.protocol.sentences import TEXTS

_WORDS, _SEVERAL = re.compile("(reason|why|sentence)(_not)?"), re.compile("(reason|sentence)s")
_READING = {"startswith", "endswith", "split", "partition", "rpartition", "find", "index", "removeprefix", "replace"}
_SEARCHING = {"search", "match", "fullmatch", "findall", "finditer"}
_ALLOWED = {
    "testkit/src/understudy_testkit/benchmark/arms/torchft.py": "reasons for settings of torchft",
}


@cache
def sources() -> dict[str, ast.Module]:
    """The product, the test equipment and the claims, by path."""
    programs = [*(ROOT / "src").rglob("*.py"), *(ROOT / "testkit" / "src").rglob("*.py")]
    claims = [path for path in (ROOT / "claims").iterdir() if path.is_file() and path.suffix in ("", ".py")]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in (*programs, *claims)}


def is_called(node: ast.expr, names: re.Pattern[str]) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return names.fullmatch(name) is not None
    return False


def is_words(node: ast.expr) -> bool:
    """Does this hold the words of a reason, as far as its name tells?"""
    return is_called(node, _WORDS) or (isinstance(node, ast.Subscript) and is_called(node.value, _SEVERAL))


def readings(code: ast.AST) -> Iterator[int]:
    """Lines in which words of a reason are searched or taken apart."""
    for node in ast.walk(code):
        match node:
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[searched]):
                literal = isinstance(left, ast.Constant) and isinstance(left.value, str)
                if is_words(searched) or (literal and is_called(searched, _SEVERAL)):
                    yield node.lineno
            case ast.Call(func=ast.Attribute(attr=method, value=value)) if method in _READING and is_words(value):
                yield node.lineno
            case ast.Call(func=ast.Attribute(attr=method), args=arguments) if method in _SEARCHING:
                if any(map(is_words, arguments)):
                    yield node.lineno


def test_no_program_reads_the_words_of_a_reason() -> None:
    found = {name: [*readings(code)] for name, code in sources().items()}
    assert {name: lines for name, lines in found.items() if lines and name not in _ALLOWED} == {}


@pytest.mark.parametrize(
    "code",
    [
        '"twin" in stop.reason',
        '"twin" not in record.reasons[0]',
        '"it has no twin" in reasons',
        'any("x" in why for why in cluster.reasons())',
        'reason.startswith("no")',
        're.search("no", sentence(reason))',
    ],
)
def test_words_that_are_read_are_found(code: str) -> None:
    assert [*readings(ast.parse(code))] == [1]


@pytest.mark.parametrize(
    "code", ["stop.reason in output", "reason.has(code)", "reason in asked", "why in self.reasons"]
)
def test_other_things_are_not(code: str) -> None:
    assert [*readings(ast.parse(code))] == []


def test_every_code_has_words_and_all_advice_is_on_a_code() -> None:
    assert set(TEXTS) == set(Code)
    assert set(ADVICE) <= set(Code)


def fields_of(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def test_whoever_gives_a_reason_gives_the_fields_that_its_words_name() -> None:
    given: set[str] = set()
    for path, code in sources().items():
        for node in ast.walk(code):
            match node:
                case ast.Call(
                    func=ast.Name(id="because") | ast.Attribute(attr="because"),
                    args=[ast.Attribute(attr=name)],
                    keywords=keywords,
                ):
                    given.add(name)
                    where = f"{path}:{node.lineno}"
                    assert {keyword.arg for keyword in keywords} == fields_of(TEXTS[Code[name]]), where
    by_kind = {"EXITED", "SIGNALLED", "RAISED", "DEVICE_LOST", "HUNG", "DISMISSED"}  # of a `Cause`
    assert {code.name for code in Code} == given | by_kind, "a code that nobody uses, or one that is not known"
