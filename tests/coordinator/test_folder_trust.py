"""Secrets that are made in the folder of a store, once, and by the process that comes first."""

import stat
import threading
from pathlib import Path

import pytest

from understudy.coordinator.folder_trust import certificates_of, token_file
from understudy.errors import SettingsError
from understudy.wire.certificates import Certificates
from understudy.wire.job_tokens import JobTokens
from understudy.wire.roles import PartyRole


def test_all_processes_get_the_same_secrets(tmp_path: Path) -> None:
    root, tokens, authorities = tmp_path / "deep" / "shared", set[str](), set[bytes]()

    def come(number: int) -> None:
        tokens.add(JobTokens.read(token_file(root)).own)
        role = PartyRole.AGENT if number % 2 else PartyRole.COORDINATOR
        authorities.add(Certificates.read(certificates_of(root, "host", role), role).authority)

    threads = [threading.Thread(target=come, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 1 and len(authorities) == 1
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items()), modes
    assert not list(root.glob("unfinished-*"))


def test_an_agents_certificate_is_for_its_host_and_makes_no_coordinator(tmp_path: Path) -> None:
    certified = Certificates.read(certificates_of(tmp_path / "s", "host7", PartyRole.AGENT)).certified()
    assert certified is not None and "host7" in certified.names and certified.roles == {PartyRole.AGENT}


def test_a_folder_that_others_may_change_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s").chmod(0o777)
    with pytest.raises(SettingsError, match=r"0777.*chmod go-w"):
        token_file(tmp_path / "s")


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SettingsError, match="a folder that all hosts share"):
        token_file(tmp_path / "file" / "s")


def test_a_damaged_authority_is_a_sentence(tmp_path: Path) -> None:
    certificates_of(tmp_path / "s", "host", PartyRole.AGENT)
    (tmp_path / "s" / "authority.pem").write_bytes(b"?")
    with pytest.raises(SettingsError, match="no key of an authority"):
        certificates_of(tmp_path / "s", "host", PartyRole.AGENT)
