"""Commands that reach a coordinator which stands by, or an address that is old, go to the one that leads."""

import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.ledger.made_up import WrittenAtOnce

from understudy.api.event_stream import EventStream
from understudy.api.job import ManyHosts
from understudy.api.rules import Rules
from understudy.api.server import ApiServer
from understudy.api.setup import ApiRequest, serving
from understudy.cli.api_client import ApiProblem, Client
from understudy.cli.main import main
from understudy.coordinator.service import Service
from understudy.foundation.clock import SystemClock
from understudy.ledger.writing import RecordLog
from understudy_testkit.faults import api_job
from understudy_testkit.faults.api_job import ACTOR, ApiJob

pytestmark = pytest.mark.timeout(240)
NOBODY = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiJob]:
    with api_job.running(tmp_path_factory.mktemp("run")) as running:
        yield running


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_API_TOKEN", ACTOR)


def write_url(folder: Path, url: str) -> None:
    (folder / "http.json").write_text(json.dumps({"url": url}))


@contextlib.contextmanager
def standing_by(job: ApiJob, run_dir: Path) -> Iterator[ApiServer]:
    """A second coordinator of the same job, in the loop of the first."""
    service = Service("job", "x" * 16)
    service.leads = "10.0.0.1:29400"

    @contextlib.asynccontextmanager
    async def whole() -> AsyncIterator[ApiServer]:
        interface = ManyHosts(service, clock=SystemClock(), event_stream=EventStream())
        request = ApiRequest(address="127.0.0.1:0", certificates=None, tokens=api_job.tokens(), rules=Rules())
        audit = RecordLog(WrittenAtOnce(run_dir / "audit-of-standby.jsonl"))
        async with serving(request, interface, run_dir, print, audit) as server:
            yield server

    context = whole()
    server = job.in_loop(context.__aenter__())
    try:
        yield server
    finally:
        job.in_loop(context.__aexit__(None, None, None))


def test_one_that_stands_by_leaves_the_address_alone(job: ApiJob, tmp_path: Path) -> None:
    with standing_by(job, tmp_path):
        assert not (tmp_path / "http.json").exists()
    write_url(tmp_path, job.server.url)
    with standing_by(job, tmp_path):
        pass
    assert json.loads((tmp_path / "http.json").read_text())["url"] == job.server.url


def test_commands_go_on_to_the_one_that_leads(job: ApiJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job.wait_until_well()
    write_url(tmp_path, job.server.url)
    with standing_by(job, tmp_path) as standby:
        assert main(["migrate", "--rank", "1", "--dry-run", "--api", standby.url]) == 0
        assert main(["spares", "4", "--host", "s0", "--dry-run", "--api", standby.url]) == 0
        assert main(["events", "--after", "0", "--api", standby.url]) == 0
        assert capsys.readouterr().out.count("would be accepted") == 2
        assert main(["status", "--api", standby.url]) == 0
        assert "ranks 4/4 up" in capsys.readouterr().out
        assert main(["status", "--json", "--api", standby.url]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["api"] == job.server.url and shown["job"]["leading"] and len(shown["members"]) == 4


@pytest.mark.parametrize("known", [False, True], ids=["nobody knows where the leader is", "the leader does not answer"])
def test_who_cannot_go_on_says_what_it_shows(
    job: ApiJob, tmp_path: Path, known: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if known:
        write_url(tmp_path, NOBODY)
    with standing_by(job, tmp_path) as standby:
        assert main(["status", "--api", standby.url]) == 3
        said = capsys.readouterr().out
        assert f"the coordinator of {standby.url} stands by" in said
        assert (f"{NOBODY}, which does not answer" if known else "10.0.0.1:29400 leads") in said
        assert main(["status", "--json", "--api", standby.url]) == 3
        shown = json.loads(capsys.readouterr().out)
        assert shown["job"]["leading"] is False and shown["job"]["leader_url"] == (NOBODY if known else None)
        for command in (["drain", "h0"], ["events"]):
            assert main([*command, "--api", standby.url]) == 3
            assert "does not" in capsys.readouterr().err


def test_an_old_address_is_looked_up_again(job: ApiJob, tmp_path: Path) -> None:
    write_url(tmp_path, job.server.url)
    assert Client(NOBODY, ACTOR, None, tmp_path).get("/v1/job")["leading"]
    with pytest.raises(ApiProblem, match="does not answer"):
        Client(NOBODY, ACTOR, None).get("/v1/job")


def test_what_somebody_may_have_seen_is_not_sent_to_another(job: ApiJob, tmp_path: Path) -> None:
    """The keys that keep a request from acting twice are known to one coordinator only."""
    write_url(tmp_path, job.server.url)
    before = len(job.look(lambda: job.interface.event_stream.after(0, 1000)))
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]

        def hear_once_and_die() -> None:
            connection, _ = mute.accept()
            connection.recv(100)
            mute.close()
            connection.close()

        thread = threading.Thread(target=hear_once_and_die)
        thread.start()
        with pytest.raises(ApiProblem, match="does not answer"):
            Client(f"http://127.0.0.1:{port}", ACTOR, None, tmp_path).post(
                "/v1/actions/abort-generation", {"reason": "x"}
            )
        thread.join(10.0)
    assert len(job.look(lambda: job.interface.event_stream.after(0, 1000))) == before


def test_nobody_is_followed_out_of_tls() -> None:
    client = Client("https://10.0.0.1:8080", ACTOR, None)
    assert client._at("http://10.0.0.2:8080") is None and client._at("nonsense") is None
    assert client._at("https://10.0.0.2:8080") == Client("https://10.0.0.2:8080", ACTOR, None)


def test_the_run_is_the_last_word_of_every_command(
    job: ApiJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.wait_until_well()
    write_url(tmp_path, job.server.url)
    run, other = str(tmp_path), str(tmp_path.parent)
    commands = (["migrate", run, "--rank", "1"], ["migrate", "--rank", "1", run], ["drain", "h0", run])
    for command in (*commands, ["replace", "--rank", "1", run], ["spares", "4", run, "--host", "s0"]):
        main([*command, "--dry-run"])
        assert capsys.readouterr().out.startswith("would be accepted"), command
    assert main(["status", "--run", run]) == 0
    assert main(["status", run, "--run", run]) == 0
    assert main(["drain", "h0", run, "--run", other]) == 2
    assert "two runs are named" in capsys.readouterr().err
