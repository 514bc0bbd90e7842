"""Asks Slurm how the nodes of this job are, and ends a job whose batch host is gone: by its own commands, without
rights and without a library.

Knows how sinfo writes a node. What follows from it is in `node_rules`.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Iterable, Mapping

from understudy.errors import SchedulerError
from understudy.foundation.ids import HostId
from understudy.foundation.printable import printable
from understudy.schedulers.node_rules import NodeSeen, Verdict

NAME = "Slurm"
_FORMAT = "%N,%T,%E"
_TIMEOUT = 10.0  # seconds for an answer; the controller may be away
_OF_SRUN = ("SLURM_JOB_ID", "SLURM_SRUN_COMM_HOST", "SLURM_SRUN_COMM_PORT")  # where the srun of a task listens
_NOT_ANSWERING = "*"
_REBOOTS = ("@", "^")  # marks of a reboot that is asked for, and of one that is under way
_MARKS = "*~#!%$@^-+"
_WANTED_BACK = ("drain", "drained", "draining", "fail", "failing", "maint", "reboot")
_IN_USE = ("allocated", "completing", "idle", "mixed", "planned")
_NO_REASON = "none"
_LONGEST_REASON = 200


def started_us(environment: Mapping[str, str]) -> bool:
    """Does this process run in a job of Slurm, with its commands at hand?"""
    return bool(environment.get("SLURM_JOB_ID")) and shutil.which("sinfo", path=environment.get("PATH")) is not None


def node_in(line: str) -> NodeSeen | None:
    """One line of sinfo. None: it is none."""
    parts = line.strip().split(",", 2)
    if len(parts) != 3 or not parts[0]:
        return None
    name, state, reason = parts
    told = "" if reason.strip().casefold() == _NO_REASON else printable(reason.strip())[:_LONGEST_REASON]
    return NodeSeen(host=HostId(name), verdict=_verdict(state), state=printable(state), reason=told)


def _verdict(state: str) -> Verdict:
    word, marks = state.rstrip(_MARKS).lower(), state[len(state.rstrip(_MARKS)) :]
    if word in _WANTED_BACK or any(mark in marks for mark in _REBOOTS):
        return Verdict.WANTED_BACK
    if word in _IN_USE and _NOT_ANSWERING not in marks:
        return Verdict.IN_USE
    return Verdict.UNKNOWN


def nodes_in(text: str) -> tuple[NodeSeen, ...]:
    """sinfo has a line for each partition of a node, and all say the same."""
    found = {node.host: node for line in text.splitlines() if (node := node_in(line)) is not None}
    return tuple(found.values())


async def look(hosts: Iterable[HostId]) -> tuple[NodeSeen, ...]:
    """Raises `SchedulerError` when Slurm does not answer. Hosts that are no nodes of it are not in the answer."""
    return nodes_in(
        await _run("sinfo", "--noheader", "--Node", "--nodes", ",".join(sorted(hosts)), "--format", _FORMAT)
    )


async def end_what_srun_cannot(environment: Mapping[str, str]) -> str | None:
    """For the last process of a job that has ended. With the batch host its script and srun are gone; then nothing ends
    the allocation, and the job of Slurm would run until its time limit. Returns what was done, for people. Raises
    `SchedulerError`."""
    job, host, port = (environment.get(name, "") for name in _OF_SRUN)
    if not job or not host or not port.isdecimal() or await _listens(host, int(port)):
        return None
    await _run("scancel", job)
    return f"srun on {host} is gone with the batch host: job {job} of Slurm was cancelled, so that its nodes are free"


async def _listens(host: str, port: int) -> bool:
    """srun complains of a connection that says nothing, in the output of its job, and goes on."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), _TIMEOUT)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _run(*command: str) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise SchedulerError(f"{command[0]}: {error.strerror}") from error
    try:
        output, complaint = await asyncio.wait_for(process.communicate(), _TIMEOUT)
    except TimeoutError:
        raise SchedulerError(f"{command[0]}: no answer within {_TIMEOUT:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode != 0:
        told = printable(complaint.decode(errors="replace").strip())[:_LONGEST_REASON]
        raise SchedulerError(f"{command[0]}: {told}")
    return output.decode(errors="replace")
