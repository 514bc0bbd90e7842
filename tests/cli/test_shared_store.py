"""What `--store folder:///...` brings along, and what cannot be."""

import argparse
import socket
from pathlib import Path

import pytest

from understudy.cli import coordinator, run, shared_store
from understudy.cli.placed import placement_of
from understudy.cli.run_flags import read_request
from understudy.errors import SettingsError
from understudy.foundation.settings import JOB_TOKEN
from understudy.wire.certificates import Certificates
from understudy.wire.roles import PartyRole


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(JOB_TOKEN, raising=False)


def run_args(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    return parser.parse_args([*flags, __file__])


def coordinator_args(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    coordinator.add_arguments(parser)
    return parser.parse_args(list(flags))


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--store", "etcd://h:2379"), "no store but folder"),
        (("--store", "folder://x"), "absolute path"),
        (("--store", "folder:///x", "--coordinator", "h:1"), "give one of them"),
        (("--store", "folder:///x", "--coordinators", "-1"), "0 or more"),
        (("--coordinators", "2"), "--store"),
        (("--nnodes", "2"), "--store folder:///PATH, or --coordinator"),
    ],
)
def test_what_cannot_be_is_refused(flags: tuple[str, ...], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=complaint):
        read_request(run_args(*flags), {}, tmp_path, live=False)


def test_an_agent_is_given_what_its_flags_do_not_say(tmp_path: Path) -> None:
    store = f"folder://{tmp_path}/s"
    args = shared_store.prepare_run(run_args("--store", store, "--job", "j", "--host-name", "h1", "--nnodes", "2"), {})
    assert args.coordinator == store and args.run_dir == f"{tmp_path}/s/job-j/run"
    assert args.token_file == tmp_path / "s" / "token"
    certified = Certificates.read(args.certs, PartyRole.AGENT).certified()
    assert certified is not None and "h1" in certified.names
    request = read_request(args, {}, Path(args.run_dir), live=False)
    assert request.policy.hosts == 2 and request.plan.host == "h1" and request.plan.store_host == args.local_addr


def test_flags_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--token-file", "t", "--certs", "c", "--local-addr", "10.0.0.7", "--run-dir", "r")
    args = shared_store.prepare_run(run_args("--store", f"folder://{tmp_path}/s", *flags), {})
    assert (args.token_file, args.certs) == (Path("t"), Path("c"))
    assert (args.local_addr, args.run_dir) == ("10.0.0.7", "r") and not (tmp_path / "s").exists()
    monkeypatch.setenv(JOB_TOKEN, "x" * 20)
    args = shared_store.prepare_run(run_args("--store", f"folder://{tmp_path}/s"), {})
    assert args.token_file is None and not (tmp_path / "s" / "token").exists()


def test_without_a_store_nothing_changes() -> None:
    given = run_args("--coordinator", "h:1")
    assert vars(shared_store.prepare_run(given, {})) == vars(given)
    assert shared_store.coordinator_beside(given, given, placement_of(given, {}), {}, lambda _: None) is None


def test_a_coordinator_is_given_secrets_of_its_own(tmp_path: Path) -> None:
    args = shared_store.prepare_coordinator(coordinator_args("--store", f"folder://{tmp_path}/s"))
    Certificates.read(args.certs, PartyRole.COORDINATOR)
    assert args.token_file == tmp_path / "s" / "token"
    plain = coordinator_args("--store", "etcd://h:2379")
    assert vars(shared_store.prepare_coordinator(plain)) == vars(plain)


@pytest.mark.parametrize(("flags", "there"), [((), True), (("--coordinators", "0"), False), (("--spare-host",), True)])
def test_a_coordinator_beside_the_agent(flags: tuple[str, ...], there: bool, tmp_path: Path) -> None:
    given = run_args("--store", f"folder://{tmp_path}/s", "--local-addr", "10.0.0.7", *flags)
    args = shared_store.prepare_run(given, {})
    beside = shared_store.coordinator_beside(given, args, placement_of(args, {}), {}, lambda _: None)
    assert (beside is not None) == there
    if beside is not None:
        command = list(beside._command)
        own = coordinator_args(*command[command.index("coordinator") + 1 :])
        assert own.listen == "10.0.0.7:0" and own.store == args.store and len(beside._posts) == 2
        Certificates.read(own.certs, PartyRole.COORDINATOR)


def test_the_address_of_this_host_is_not_loopback_if_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_name: str) -> str:
        raise socket.gaierror("unknown")

    monkeypatch.setattr(socket, "gethostbyname", lambda _: "10.1.2.3")
    assert shared_store.usual_address() == "10.1.2.3"
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "127.0.1.1")
    monkeypatch.setattr(shared_store, "_address_of_way_out", lambda: "10.9.9.9")
    assert shared_store.usual_address() == "10.9.9.9"
    monkeypatch.setattr(socket, "gethostbyname", unknown)
    monkeypatch.setattr(shared_store, "_address_of_way_out", lambda: "127.0.0.1")
    assert shared_store.usual_address() == "127.0.0.1"
