"""The operator's commands against a real server of a leader with a real machine."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from understudy.api.server import ApiServer
from understudy.cli import status
from understudy.cli.main import main
from understudy.files.private import write_private
from understudy.wire.certificates import Certificates
from understudy.wire.issuing import make_set
from understudy_testkit.faults import api_job
from understudy_testkit.faults.api_job import ACTOR, READER, ApiJob

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiJob]:
    folder = tmp_path_factory.mktemp("run")
    with api_job.running(folder) as running:
        (folder / "http.json").write_text(json.dumps({"url": running.server.url}))
        yield running


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_API_TOKEN", ACTOR)


def test_status(job: ApiJob, capsys: pytest.CaptureFixture[str]) -> None:
    job.wait_until_well()
    for arguments in ([str(job.folder)], ["--api", job.server.url]):
        assert main(["status", *arguments]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("job job: training, generation") and lines[1].startswith("ranks 4/4 up, spares:")
        assert "rank  member  host  standing  step" in lines
        assert any(line.split()[:1] == ["s0"] for line in lines), "the host of spares is missing"


def test_migrate_and_replace(job: ApiJob, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--run", str(job.folder)]
    job.wait_until_well()
    assert main(["migrate", "--rank", "1", "--dry-run", *where]) == 0
    assert capsys.readouterr().out.startswith("would be accepted: migrate")
    before = holder(job, 1)
    assert main(["migrate", "--rank", "1", "--reason", "its fan is loud", *where]) == 0
    said = capsys.readouterr().out
    assert said.startswith("accepted: migrate") and "its fan is loud" in said and "next: follow it" in said
    wait_for_another(job, 1, before)
    before = holder(job, 2)
    assert main(["replace", "--rank", "2", "--member", "m-999", *where]) == 1
    assert f"is held by {before} now" in capsys.readouterr().err
    assert main(["replace", "--rank", "2", "--member", before, *where]) == 0
    wait_for_another(job, 2, before)
    assert main(["status", str(job.folder)]) == 0
    assert f"rank 2: {before} ->" in capsys.readouterr().out
    assert main(["events", str(job.folder), "--after", "0"]) == 0
    events = capsys.readouterr().out
    assert "move: rank 1 moves" in events and "swap done in" in events
    assert main(["events", str(job.folder), "--after", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["number"] == 1


def wait_for_another(job: ApiJob, rank: int, former: str) -> None:
    deadline = time.monotonic() + 20.0
    while holder(job, rank) == former and time.monotonic() < deadline:
        time.sleep(0.02)
    assert holder(job, rank) != former
    job.wait_until_well()


def holder(job: ApiJob, rank: int) -> str:
    def look() -> str:
        machine = job.interface.machine()
        assert machine is not None
        return next((str(member.id) for member in machine.roster.seated() if member.rank == rank), "nobody")

    return job.look(look)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["drain", "nowhere"], "there is no host nowhere"),
        (["undrain", "nowhere"], "there is no host nowhere"),
        (["replace", "--rank", "77"], "there is no rank 77"),
        (["spares", "1", "--host", "nowhere"], "there is no host nowhere"),
        (["migrate", "--rank", "-1"], "greater than or equal to 0"),
        (["migrate", "--rank", "77", "--dry-run"], "would be refused"),
    ],
)
def test_what_the_job_refuses(job: ApiJob, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    job.wait_until_well()
    assert main([*arguments, "--api", job.server.url]) == 1
    output = capsys.readouterr()
    assert said in output.err + output.out and ("to do: " in output.err or "next: " in output.out)


def test_tokens(
    job: ApiJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UNDERSTUDY_API_TOKEN", "")
    assert main(["status", "--api", job.server.url]) == 4
    assert "$UNDERSTUDY_API_TOKEN" in capsys.readouterr().err
    write_private(tmp_path / "token", READER.encode() + b"\n")
    assert main(["status", "--api", job.server.url, "--token-file", str(tmp_path / "token")]) == 0
    assert main(["drain", "h0", "--api", job.server.url, "--token-file", str(tmp_path / "token")]) == 4
    assert "has not the role act" in capsys.readouterr().err
    (tmp_path / "token").chmod(0o644)
    assert main(["status", "--api", job.server.url, "--token-file", str(tmp_path / "token")]) == 2
    assert f"chmod 600 {tmp_path}/token" in capsys.readouterr().err


def test_nobody_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drain", "h0", "--api", "http://127.0.0.1:1"]) == 3
    assert "does not answer" in capsys.readouterr().err
    assert main(["status", str(tmp_path)]) == 3
    assert "runs without --http" in capsys.readouterr().err
    for wrong in ("nonsense", "http://", "http://x:y", "ftp://x:1"):
        assert main(["status", "--api", wrong]) == 2
    assert main(["status", str(tmp_path / "none")]) == 2


def test_a_run_that_has_ended_is_told_from_its_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = {
        "job": "x",
        "command": [],
        "world_size": 1,
        "spares": 0,
        "digest_every": 0,
        "started": "",
        "versions": {},
    }
    (tmp_path / "run.json").write_text(json.dumps(info))
    (tmp_path / "ledger").mkdir()
    end = {"type": "decision", "at": 1.0, "generation": 1, "kind": "stop", "reason": "every rank ended its script"}
    (tmp_path / "ledger" / "decisions.jsonl").write_text(json.dumps(end) + "\n")
    assert main(["status", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "every rank ended its script" in said and "understudy explain" in said


def test_a_large_world_shows_only_what_is_not_as_it_should_be() -> None:
    members = [
        {"rank": rank, "member": f"m-{rank}", "host": "h", "standing": "active", "step": None, "connected": rank != 3}
        for rank in range(99)
    ]
    lines = status.member_lines(members, {"world_size": 100})
    assert [line.split()[0] for line in lines[2:4]] == ["3", "99"] and "vacant" in lines[3]


def test_over_tls_both_sides_prove_who_they_are(
    job: ApiJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_set(tmp_path / "ours", ["boss", "guest", "host1"], coordinators=["boss"], api_clients=["guest"])
    make_set(tmp_path / "others", ["guest"])
    server = ApiServer(job.api.app, print)
    job.in_loop(server.open("127.0.0.1:0", Certificates.read(tmp_path / "ours" / "boss")))
    try:
        assert main(["status", "--api", server.url, "--certs", str(tmp_path / "ours" / "guest")]) == 0
        assert main(["status", "--api", server.url, "--certs", str(tmp_path / "others" / "guest")]) == 4
        assert "of the same authority" in capsys.readouterr().err
        assert "cert.pem ends in" not in capsys.readouterr().err
        make_set(tmp_path / "ours", ["boss", "guest", "host1"], coordinators=["boss"], api_clients=["guest"], days=2)
        main(["status", "--api", server.url, "--certs", str(tmp_path / "ours" / "guest")])
        assert f"understudy: the certificate {tmp_path}/ours/guest/cert.pem ends in 48 hours" in capsys.readouterr().err
        assert main(["status", "--api", server.url, "--certs", str(tmp_path / "ours" / "host1")]) == 2
        assert "has the role agent, not api-client; `understudy certs" in capsys.readouterr().err
        assert main(["status", "--api", server.url]) == 2
        assert "--certs" in capsys.readouterr().err
    finally:
        job.in_loop(server.close())


def test_the_token_is_shown_to_a_coordinators_certificate_only(
    job: ApiJob, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same authority and with the right name, but without the role."""
    plain = x509.SubjectAlternativeName

    def without_the_role(names: list[x509.GeneralName]) -> x509.SubjectAlternativeName:
        servers = [name for name in names if isinstance(name, x509.DNSName)]
        return plain(servers or names)

    with monkeypatch.context() as patched:
        patched.setattr(x509, "SubjectAlternativeName", without_the_role)
        make_set(tmp_path, ["boss", "guest"], coordinators=["boss"], api_clients=["guest"])
    server = ApiServer(job.api.app, print)
    job.in_loop(server.open("127.0.0.1:0", Certificates.read(tmp_path / "boss")))
    try:
        before = job.api.metrics.refusals.total()
        assert main(["status", "--api", server.url, "--certs", str(tmp_path / "guest")]) == 4
        assert "the server that answers there is for boss, understudy and has no role" in capsys.readouterr().err
        assert job.api.metrics.refusals.total() == before
    finally:
        job.in_loop(server.close())
