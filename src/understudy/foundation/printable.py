"""Texts of others that go to terminals, logs and ledgers. A control character in them could move the cursor, forge a
line or hide one."""


def printable(text: str, *, instead: str = "?", keep: str = "") -> str:
    """Every character that cannot be shown becomes `instead`, but those in `keep` stay."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep else instead for letter in text)
