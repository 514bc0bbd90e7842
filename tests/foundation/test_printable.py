"""What others wrote is shown without what could move a cursor, forge a line or hide one."""

import pytest

from understudy.foundation.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rank 3, Grüße, 日本", "rank 3, Grüße, 日本"),
        ("\x1b[2J\x00gone", "?[2J?gone"),
        ("one\ntwo\r\u2028three", "one?two??three"),
        ("\u202eright to left", "?right to left"),
        ("\ud800", "?"),
        ("", ""),
    ],
)
def test_what_cannot_be_shown_is_replaced(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_the_caller_says_what_stays_and_what_stands_instead() -> None:
    assert printable("a\tb\n\x07c", keep="\n\t") == "a\tb\n?c"
    assert printable("a\nb", instead=" ") == "a b"
