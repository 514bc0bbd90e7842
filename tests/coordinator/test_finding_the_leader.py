"""Two coordinators as people start them, with one run folder: where the API of the leader is, and who is ready."""

import contextlib
import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.coordinator.lines import TOKEN

from understudy.cli.main import main
from understudy_testkit.faults import etcd_servers
from understudy_testkit.faults.coordinators import CoordinatorProcess, running

pytestmark = pytest.mark.timeout(240)
needs_etcd = pytest.mark.skipif(etcd_servers.why_not() is not None, reason=str(etcd_servers.why_not()))
HEALTH = ("--health", "0.0.0.0:0")


def probe(coordinator: CoordinatorProcess, page: str) -> int:
    port = coordinator.find(r"for probes on port (\d+)")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=5.0) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def url_in(folder: Path) -> str:
    return str(json.loads((folder / "run" / "http.json").read_text())["url"])


def url_of(coordinator: CoordinatorProcess) -> str:
    return f"http://127.0.0.1:{coordinator.http_port}"


def test_without_a_store_nobody_can_lead_and_probes_say_so(tmp_path: Path) -> None:
    store = ("--store", "etcd://127.0.0.1:1")
    with running(tmp_path, "alone", TOKEN, *store, *HEALTH) as alone:
        assert probe(alone, "/health") == 200 and probe(alone, "/ready") == 503
        assert not (tmp_path / "run" / "http.json").exists()


@needs_etcd
def test_the_folder_of_the_run_names_the_one_that_leads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _first_leads(tmp_path) as (first, second):
        assert url_in(tmp_path) == url_of(first)
        assert probe(first, "/ready") == probe(first, "/health") == 200 and probe(first, "/status") == 404
        assert main(["status", "--json", "--api", url_of(second)]) == 0
        assert json.loads(capsys.readouterr().out)["api"] == url_of(first)
        first.process.send_signal(signal.SIGKILL)
        assert main(["status", "--api", url_of(second)]) == 3, "it stands by, and the leader is gone"
        assert f"the coordinator of {url_of(second)} stands by" in capsys.readouterr().out
        second.find(r"(leading), term")
        wait_until(lambda: probe(second, "/ready") == 200 and url_in(tmp_path) == url_of(second))
        assert main(["status", str(tmp_path / "run")]) == 0
        assert "waits for hosts" in capsys.readouterr().out


@contextlib.contextmanager
def _first_leads(folder: Path) -> Iterator[tuple[CoordinatorProcess, CoordinatorProcess]]:
    """The second is started when the first leads, and is the last to start."""
    with etcd_servers.running(folder) as etcd:
        flags = ("--store", etcd.address, *HEALTH)
        with running(folder, "first", TOKEN, *flags) as first:
            first.find(r"(leading), term")
            wait_until(lambda: probe(first, "/ready") == 200)
            with running(folder, "second", TOKEN, *flags) as second:
                wait_until(lambda: probe(second, "/ready") == 200)
                yield first, second
