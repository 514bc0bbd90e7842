"""Who may read what: secrets that we are given, and what we make."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy.errors import SettingsError
from understudy.files import private
from understudy.files.append_file import AppendFile


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def generous_umask() -> Iterator[None]:
    """What is private must not be so by accident."""
    before = os.umask(0o000)
    yield
    os.umask(before)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o777, 0o440])
def test_a_secret_that_others_may_read_or_change_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, mode: int
) -> None:
    file = tmp_path / "my token"
    file.write_text("0123456789abcdef")
    file.chmod(mode)
    with pytest.raises(SettingsError) as refused:
        private.read_secret_text("--token-file", file)
    said = str(refused.value)
    assert said.startswith(f"--token-file {file}: its mode is {mode:04o}") and f"chmod 600 '{file}'" in said
    assert "0123456789abcdef" not in said
    file.chmod(0o600)
    assert private.read_secret_text("--token-file", file) == "0123456789abcdef"


def test_what_else_may_be_wrong_with_a_secret(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--token-file .*: No such file"):
        private.read_secret("--token-file", tmp_path / "absent")
    with pytest.raises(SettingsError, match="Is a directory"):
        private.read_secret("--token-file", tmp_path)
    private.write_private(tmp_path / "bytes", b"\xff\xfe")
    with pytest.raises(SettingsError, match="UTF-8"):
        private.read_secret_text("--token-file", tmp_path / "bytes")


def test_what_we_make_is_for_one_user_and_what_exists_stays_as_it_is(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    private.make_private_folder(shared / "runs" / "a" / "ledger")
    private.make_private_folder(shared / "runs" / "a" / "ledger")
    assert [mode_of(shared / part) for part in ("runs", "runs/a", "runs/a/ledger")] == [0o700] * 3
    private.write_private(shared / "file", b"long content")
    private.write_private(shared / "file", b"short")
    assert mode_of(shared / "file") == 0o600 and (shared / "file").read_bytes() == b"short"
    (shared / "file").chmod(0o640)
    private.write_private(shared / "file", b"again")
    assert mode_of(shared / "file") == 0o640 and mode_of(shared) == 0o755


def test_a_folder_below_a_file_is_an_error_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        private.make_private_folder(tmp_path / "file" / "below")


class Nobody:
    def began(self, file: AppendFile, why: str) -> None: ...

    def ended(self, file: AppendFile) -> None: ...


def test_so_are_the_files_that_we_append_to(tmp_path: Path) -> None:
    file = AppendFile(tmp_path / "logs" / "0.log", gap=lambda *_: b"", listener=Nobody(), mark=tmp_path / "mark")
    assert file.append(b"line\n")
    file.lose(patience=5.0)
    file.close()
    assert mode_of(tmp_path / "logs") == 0o700
    assert mode_of(tmp_path / "logs" / "0.log") == 0o600 and mode_of(tmp_path / "mark") == 0o600
