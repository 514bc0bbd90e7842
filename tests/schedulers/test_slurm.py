"""Lines as sinfo 22.05.8 printed them, and the commands of a Slurm that is a shell script."""

import asyncio
import os
from pathlib import Path

import pytest

from understudy.errors import SchedulerError
from understudy.foundation.ids import HostId
from understudy.schedulers import slurm
from understudy.schedulers.node_rules import NodeSeen, Verdict


def of(line: str) -> NodeSeen:
    found = slurm.node_in(line)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "state", ["drained", "draining", "drained*", "draining@", "fail", "failing*", "idle@", "allocated^", "maint"]
)
def test_wanted_back(state: str) -> None:
    assert of(f"n1,{state},fan 3, and 4").verdict is Verdict.WANTED_BACK


@pytest.mark.parametrize("state", ["idle", "allocated", "mixed", "completing", "mixed-", "idle~"])
def test_in_use(state: str) -> None:
    assert of(f"n1,{state},none").verdict is Verdict.IN_USE


@pytest.mark.parametrize("state", ["down", "down*", "allocated*", "idle*", "unknown", "future", "", "***"])
def test_a_node_that_does_not_answer_says_nothing(state: str) -> None:
    assert of(f"n1,{state},Not responding").verdict is Verdict.UNKNOWN


def test_reasons() -> None:
    assert of("n1,draining,fan 3, and 4\x1b[2J").reason == "fan 3, and 4?[2J"
    assert of("n1,idle,none").reason == ""
    assert len(of("n1,draining," + "x" * 5000).reason) == 200


def test_every_node_once() -> None:
    printed = "n1,idle,none\nn1,idle,none\n\nnonsense\nn2,drained,disk\n"
    assert [node.host for node in slurm.nodes_in(printed)] == ["n1", "n2"]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is first in the path."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def put(commands: Path, name: str, script: str) -> None:
    (commands / name).write_text(f"#!/bin/sh\n{script}\n")
    (commands / name).chmod(0o755)


def test_nodes_are_asked_for_by_name(commands: Path) -> None:
    put(commands, "sinfo", f'echo "$@" > {commands}/asked; echo n2,draining,disk')
    seen = asyncio.run(slurm.look([HostId("n2"), HostId("n1")]))
    assert seen == (NodeSeen(host=HostId("n2"), verdict=Verdict.WANTED_BACK, state="draining", reason="disk"),)
    assert (commands / "asked").read_text() == "--noheader --Node --nodes n1,n2 --format %N,%T,%E\n"


def test_a_slurm_that_does_not_answer(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(commands, "sinfo", "echo slurm_load_partitions: Unable to contact slurm controller >&2; exit 1")
    with pytest.raises(SchedulerError, match="sinfo: slurm_load_partitions: Unable to contact"):
        asyncio.run(slurm.look([HostId("n1")]))
    put(commands, "sinfo", "exec sleep 60")
    monkeypatch.setattr(slurm, "_TIMEOUT", 0.1)
    with pytest.raises(SchedulerError, match=r"no answer within 0\.1 s"):
        asyncio.run(slurm.look([HostId("n1")]))


def test_without_the_commands_of_slurm(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(commands, "sinfo", "")
    in_a_job = {"SLURM_JOB_ID": "7", "PATH": str(commands)}
    assert slurm.started_us(in_a_job) and not slurm.started_us({"PATH": str(commands)})
    (commands / "sinfo").unlink()
    assert not slurm.started_us(in_a_job)
    monkeypatch.setenv("PATH", str(commands))
    with pytest.raises(SchedulerError, match="sinfo: No such file"):
        asyncio.run(slurm.look([HostId("n1")]))


async def ended(commands: Path) -> tuple[str | None, str | None]:
    """What is said with an srun that listens, and with one that is gone."""
    put(commands, "scancel", f'echo "$@" > {commands}/cancelled')
    srun = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = srun.sockets[0].getsockname()[1]
    ours = {"SLURM_JOB_ID": "7", "SLURM_SRUN_COMM_HOST": "127.0.0.1", "SLURM_SRUN_COMM_PORT": str(port)}
    with_srun = await slurm.end_what_srun_cannot(ours)
    assert not (commands / "cancelled").exists()
    srun.close()
    await srun.wait_closed()
    return with_srun, await slurm.end_what_srun_cannot(ours)


def test_a_job_is_ended_only_if_its_srun_is_gone(commands: Path) -> None:
    with_srun, without = asyncio.run(ended(commands))
    assert with_srun is None and without is not None and "job 7 of Slurm was cancelled" in without
    assert (commands / "cancelled").read_text() == "7\n"
    assert asyncio.run(slurm.end_what_srun_cannot({"SLURM_JOB_ID": "7"})) is None  # started without srun
