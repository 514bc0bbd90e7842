"""Jobs whose flags are in a configuration file: on one host, and on two with JSON lines from everybody."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.running import PATIENCE, SCRIPTS, Running

from understudy.ledger.reading import read_run
from understudy_testkit.faults import coordinators

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]
SCRIPT = str(SCRIPTS / "own_functions.py")
TOKEN = "a token of sixteen letters or more"


def written(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text)
    return path


def address_of(boss: coordinators.CoordinatorProcess) -> str:
    return boss.find(r"listening on (\S+) ", PATIENCE)


def documents(text: str, who: str) -> list[dict[str, Any]]:
    """The lines of one party; a script may print others between them."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert {line["who"] for line in lines} == {who}, text
    assert all({"time", "level", "code", "host", "job", "run", "text"} <= line.keys() for line in lines)
    return lines


def test_a_job_with_everything_in_its_file(tmp_path: Path) -> None:
    """`nproc-per-node` of the file counts, and so does `spares` of the command line."""
    run_dir, result = tmp_path / "run", tmp_path / "result"
    text = f'[run]\nnproc-per-node = 2\nspares = 3\nrun-dir = "{run_dir}"\ndigest-every = 1\nlog-format = "json"\n'
    config = written(tmp_path, text)
    command = ("-m", "understudy", "run", "--config", str(config), "--spares", "0", SCRIPT, str(result))
    with Running(tmp_path, *command) as job:
        assert job.wait() == 0, job.output
    info = read_run(run_dir).info
    assert (info.world_size, info.spares, info.digest_every) == (2, 0, 1)
    assert result.read_text().startswith("9 ")
    told = documents(job.output, "understudy agent")
    assert [line["code"] for line in told][:1] == ["starting"] and told[-1]["code"] == "end"
    assert (told[-1]["level"], told[-1]["exit_code"], told[-1]["run"]) == ("info", 0, "run")


def test_two_hosts_tell_their_news_in_json(tmp_path: Path) -> None:
    """The rank of the second host is killed, and comes back there."""
    result, token = tmp_path / "result", tmp_path / "token"
    with coordinators.running(tmp_path, "boss", TOKEN) as boss:
        text = (
            f'[run]\nnnodes = 2\nspares = 1\nlog-format = "json"\nlocal-addr = "127.0.0.1"\nhost-patience = 10\n'
            f'coordinator = "{address_of(boss)}"\ntoken-file = "{token}"\nrun-dir = "{tmp_path / "run"}"\n'
        )
        command = ("-m", "understudy", "run", "--config", str(written(tmp_path, text)))
        script = (SCRIPT, str(result), "--kill-at", "5")
        first = ("--host-name", "a", "--node-rank", "0", "--spares", "0")
        with (
            Running(tmp_path / "a", *command, *first, *script) as a,
            Running(tmp_path / "b", *command, "--host-name", "b", "--node-rank", "1", *script) as b,
        ):
            assert (a.wait(), b.wait()) == (0, 0), a.output + b.output
        assert boss.process.wait(60) == 0
    assert result.with_suffix(".killed").exists()
    for job, host in ((a, "a"), (b, "b")):
        told = documents(job.output, "understudy agent")
        assert {line["host"] for line in told} == {host}
        codes = [line["code"] for line in told]
        news = [codes.index(code) for code in ("starting", "connected", "rank", "recovered", "end")]
        assert news == sorted(news), codes
        runs = {line["run"] for line in told[codes.index("connected") :]}
        assert len(runs) == 1 and "" not in runs
        assert told[codes.index("connected")]["address"] == boss.address


def test_the_check_says_the_same_as_the_coordinator(tmp_path: Path) -> None:
    """A host whose file differs in what must be equal is refused with code 2."""
    with coordinators.running(tmp_path, "boss", TOKEN) as boss:
        common = f'[run]\nnnodes = 2\ncoordinator = "{address_of(boss)}"\ntoken-file = "{tmp_path / "token"}"\n'
        common += f'local-addr = "127.0.0.1"\nrun-dir = "{tmp_path / "run"}"\nno-python = true\n'
        files = {name: tmp_path / f"{name}.toml" for name in "ab"}
        files["a"].write_text(f'{common}host-name = "a"\n')
        files["b"].write_text(f'{common}host-name = "b"\nbusy-timeout = 90\n')
        with Running(tmp_path / "check", "-m", "understudy", "config", "check", *map(str, files.values())) as check:
            assert check.wait() == 1 and "run.busy-timeout: 60.0 in" in check.output
        start = ("-m", "understudy", "run", "--spares", "0", "--config")
        with Running(tmp_path / "a", *start, str(files["a"]), "sleep", "600") as a:
            a.wait_for_output("connected to the coordinator")
            with Running(tmp_path / "b", *start, str(files["b"]), "sleep", "600") as b:
                assert b.wait() == 2, b.output
            assert "busy-timeout 90.0 (the job: 60.0)" in b.output
