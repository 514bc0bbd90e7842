"""Tokens from a file, buckets, memories."""

import hashlib
from pathlib import Path

import pytest

from understudy.api.limits import Bucket, Buckets, Limits, Memory
from understudy.api.tokens import Role, read_tokens
from understudy.errors import SettingsError
from understudy.foundation.token_bucket import Rate

TOKEN = "a-token-of-20-letters"
DIGEST = hashlib.sha256(TOKEN.encode()).hexdigest()


def write(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "tokens.toml"
    file.write_text(text)
    file.chmod(mode)
    return file


@pytest.mark.parametrize("secret", [f'token = "{TOKEN}"', f'sha256 = "{DIGEST}"', f'sha256 = "{DIGEST.upper()}"'])
def test_a_token_file(tmp_path: Path, secret: str) -> None:
    tokens = read_tokens(write(tmp_path, f'[[token]]\nname = "ops"\nroles = ["act", "webhook"]\n{secret}\n'))
    caller = tokens.caller(TOKEN)
    assert caller is not None and caller.name == "ops"
    assert caller.may(Role.ACT) and caller.may(Role.READ) and caller.may(Role.WEBHOOK)
    for wrong in ("", TOKEN[:-1], TOKEN + " ", TOKEN.upper(), DIGEST, "\ud800", "\xff"):
        assert tokens.caller(wrong) is None


def test_roles_do_not_grow(tmp_path: Path) -> None:
    text = f'[[token]]\nname = "am"\nroles = ["webhook"]\ntoken = "{TOKEN}"\n'
    caller = read_tokens(write(tmp_path, text)).caller(TOKEN)
    assert caller is not None and not caller.may(Role.READ) and not caller.may(Role.ACT)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(SettingsError, match="chmod 600"):
        read_tokens(write(tmp_path, "", mode))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "give 1 to 256 tables"),
        ("[token]\nname = 'x'", "give 1 to 256 tables"),
        ("token = [1]", "token[0]"),
        (f"[[token]]\nname = 'x'\nroles = ['read']\ntoken = '{TOKEN}'\n[other]", "nothing else"),
        (f"[[token]]\nroles = ['read']\ntoken = '{TOKEN}'", "token[0].name"),
        (f"[[token]]\nname = 'x'\nroles = ['root']\ntoken = '{TOKEN}'", "token[0].roles"),
        (f"[[token]]\nname = 'x'\nroles = []\ntoken = '{TOKEN}'", "token[0].roles"),
        ("[[token]]\nname = 'x'\nroles = ['read']", "either token or sha256"),
        ("[[token]]\nname = 'x'\nroles = ['read']\ntoken = 'short'", "token[0].token"),
        ("[[token]]\nname = 'x'\nroles = ['read']\nsha256 = 'short'", "token[0].sha256"),
        (f"[[token]]\nname = 'x'\nroles = ['read']\ntoken = '{TOKEN}'\nnote = ''", "token[0].note"),
        (
            f"[[token]]\nname = 'x'\nroles = ['read']\ntoken = '{TOKEN}'\n"
            f"[[token]]\nname = 'y'\nroles = ['act']\nsha256 = '{DIGEST}'",
            "twice",
        ),
    ],
)
def test_what_is_wrong_with_a_token_file_is_named_and_no_token_is_shown(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        read_tokens(write(tmp_path, text))
    assert key in str(wrong.value) and TOKEN not in str(wrong.value)


def test_a_bucket() -> None:
    buckets = Buckets(Limits(act=Rate(2, 0.5)))
    assert [buckets.take("x", Bucket.ACT, 0.0) for _ in range(3)] == [0.0, 0.0, 2.0]
    assert buckets.take("y", Bucket.ACT, 0.0) == 0.0  # everybody has their own
    assert buckets.take("x", Bucket.READ, 0.0) == 0.0
    assert buckets.take("x", Bucket.ACT, 1.0) == 1.0
    assert buckets.take("x", Bucket.ACT, 2.0) == 0.0
    assert [buckets.take("x", Bucket.ACT, 1000.0) for _ in range(3)] == [0.0, 0.0, 2.0]


def test_a_memory_has_a_size_and_an_age() -> None:
    memory: Memory[str, int] = Memory(2, 10.0)
    memory.put("a", 1, 0.0)
    memory.put("b", 2, 1.0)
    assert memory.full(1.0) and memory.get("a", 1.0) == 1
    memory.put("c", 3, 2.0)
    assert memory.get("a", 2.0) is None and memory.get("b", 2.0) == 2
    assert memory.get("b", 11.0) is None and memory.get("c", 11.0) == 3 and len(memory) == 1
