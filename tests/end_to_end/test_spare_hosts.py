"""Hosts of a job that were all started with the same line: the first hold ranks, the next is a spare host."""

import os
import signal
from pathlib import Path
from typing import Any, cast

import pytest
from tests.end_to_end.running import PATIENCE, SCRIPTS, Running, wait_until

from understudy.foundation.exits import NO_RENDEZVOUS
from understudy.foundation.parenthood import children_of
from understudy.ledger.reading import read_run
from understudy_testkit.faults import coordinators
from understudy_testkit.faults.watching import page_of
from understudy_testkit.ports import free_ports

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]
TOKEN = "a token of sixteen letters or more"
GATE = 4


def _members(boss: coordinators.CoordinatorProcess) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], boss.status("/v1/members"))


def _pid_of(member: str, agent: int) -> int:
    return next(pid for pid in children_of(agent) if Path(page_of(pid) or "").stem == member)


def test_the_second_host_of_1_to_2_takes_a_killed_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No place, address or role is given to either; a scheduler's variables name the job and its second attempt."""
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with coordinators.running(tmp_path, "boss", TOKEN) as boss:
        address = boss.find(r"listening on (\S+) for job 4711@1", PATIENCE)
        job = (
            *("-m", "understudy", "run", "--coordinator", address, "--token-file", str(tmp_path / "token")),
            *("--run-dir", str(tmp_path / "run"), "--nnodes", "1:2", "--nproc-per-node", "2", "--spares", "0"),
        )
        script = (str(SCRIPTS / "gated.py"), str(tmp_path), str(GATE), "--mode", "ddp", "--steps", "8")
        with Running(tmp_path / "a", *job, "--host-name", "a", *script) as a:
            wait_until(lambda: (tmp_path / f"at-{GATE}-1").exists() or a.process.poll() is not None, "the gate")
            with Running(tmp_path / "b", *job, "--host-name", "b", *script) as b:
                wait_until(lambda: boss.status("/v1/job")["spares_warm"] == 2, "two warm spares")
                held = {one["rank"]: one["member"] for one in _members(boss) if one["rank"] is not None}
                assert {one["host"] for one in _members(boss) if one["rank"] is not None} == {"a"}
                os.kill(_pid_of(held[1], a.process.pid), signal.SIGKILL)
                b.wait_for_output("rank 1 is on this host")
                (tmp_path / f"go-{GATE}").touch()
                assert (a.wait(), b.wait()) == (0, 0), a.output + b.output
        assert boss.process.wait(60) == 0
    assert "job 4711@1: this host offers 2 ranks, 0 spares" in a.output and "job 4711 (SLURM_JOB_ID)" in a.output
    assert read_run(tmp_path / "run").info.world_size == 2


def test_a_host_that_finds_no_coordinator_ends_with_a_code_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    (port,) = free_ports(1)
    flags = ("--token-file", str(tmp_path / "token"), "--run-dir", str(tmp_path / "run"), "--rendezvous-timeout", "1")
    command = ("-m", "understudy", "run", "--coordinator", f"127.0.0.1:{port}", *flags, "--no-python", "sleep", "600")
    with Running(tmp_path / "a", *command) as a:
        assert a.wait() == NO_RENDEZVOUS, a.output
    assert "no coordinator was found within 1 s (--rendezvous-timeout), and no rank is here" in a.output
