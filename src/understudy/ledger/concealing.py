"""What a ledger and the output keep of a command line: all of it, except what looks like a secret of the script.

People give passwords and keys as arguments. A process list forgets them when the process ends; a ledger and a log are
kept and passed around. So the values of flags with such names are left out. A name is all that we have to go by: a
secret under another name stays.
"""

import re
from collections.abc import Sequence

CONCEALED = "***"
_NAMED = re.compile(r"(?P<dashes>-{0,2})(?P<name>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
_IN_ADDRESS = re.compile(r"(://[^/:@\s]*:)[^@/\s]+@")
_WORDS = ("password", "passwd", "secret", "credentials")
_KINDS = ("api", "access", "auth", "bearer", "hf", "hub", "job", "private", "secret", "wandb")
_ENDINGS = tuple(f"-{kind}{dash}{what}" for kind in _KINDS for dash in ("-", "") for what in ("key", "token"))


def conceal(command: Sequence[str]) -> tuple[str, ...]:
    """`--api-key X`, `--api-key=X`, `logger.api_key=X`, `https://user:X@host`: without X."""
    kept: list[str] = []
    next_is_secret = False
    for argument in command:
        found = _NAMED.fullmatch(argument)
        if next_is_secret and not argument.startswith("-"):
            kept.append(CONCEALED)
            next_is_secret = False
        elif found is None or not is_secret(found["name"]):
            kept.append(_IN_ADDRESS.sub(rf"\g<1>{CONCEALED}@", argument))
            next_is_secret = False
        elif found["value"] is not None:
            kept.append(f"{found['dashes']}{found['name']}={CONCEALED}")
            next_is_secret = False
        else:
            kept.append(argument)
            next_is_secret = bool(found["dashes"])
    return tuple(kept)


def has_password(text: str) -> bool:
    """An address such as `https://user:X@host`."""
    return _IN_ADDRESS.search(text) is not None


def is_secret(name: str) -> bool:
    """Not every token is one: a padding token is not."""
    plain = name.lower().replace("_", "-").replace(".", "-")
    return plain == "token" or plain.rpartition("-")[2] in _WORDS or f"-{plain}".endswith(_ENDINGS)
