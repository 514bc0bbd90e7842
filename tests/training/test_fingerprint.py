import pytest

from understudy.training.script_errors import fingerprint_of


def caught(words: str, kind: type[Exception] = ValueError, elsewhere: bool = False) -> Exception:
    try:
        if elsewhere:
            raise kind(words)
        raise kind(words)
    except Exception as error:
        return error


def test_the_same_error_from_the_same_place_is_the_same() -> None:
    assert fingerprint_of(caught("bad batch")) == fingerprint_of(caught("bad batch"))


def test_addresses_do_not_count() -> None:
    assert fingerprint_of(caught("<obj at 0x7f01>")) == fingerprint_of(caught("<obj at 0x7fffAB>"))


@pytest.mark.parametrize(
    "other", [caught("other words"), caught("bad batch", KeyError), caught("bad batch", elsewhere=True)]
)
def test_other_words_another_type_or_another_place_is_another_error(other: Exception) -> None:
    assert fingerprint_of(caught("bad batch")) != fingerprint_of(other)


def test_an_error_that_was_never_raised_has_one_too() -> None:
    assert fingerprint_of(ValueError("x")) == fingerprint_of(ValueError("x"))
