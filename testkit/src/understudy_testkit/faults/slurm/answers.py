"""What Slurm's commands print, as values. Pure: `cluster` runs the commands."""

import re
from dataclasses import dataclass

JOBS_FORMAT = "%i|%T|%N|%r"  # of squeue
NODES_FORMAT = "%N|%T|%E"  # of sinfo
NO_REASON = "none"
_PAIR = re.compile(r"(?:^|\s)([A-Z][\w/:]*)=(\S*)")


@dataclass(frozen=True, slots=True)
class JobSeen:
    """`nodes`: as Slurm writes a list of them, such as n[1-3]; empty for a job that waits."""

    id: str
    state: str
    nodes: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """`state`: without the mark of a node that does not answer."""

    name: str
    state: str
    answers: bool
    reason: str


def jobs_in(text: str) -> dict[str, JobSeen]:
    """By id, out of squeue with `JOBS_FORMAT`."""
    jobs = (JobSeen(*line.split("|", 3)) for line in text.splitlines() if line)
    return {job.id: job for job in jobs}


def nodes_in(text: str) -> dict[str, NodeSeen]:
    """By name, out of sinfo with `NODES_FORMAT`, which has a line for each partition of a node."""
    found = {}
    for line in text.splitlines():
        if line:
            name, state, reason = line.split("|", 2)
            found[name] = NodeSeen(name, state.rstrip("*~#!%$@^-+"), "*" not in state, _reason(reason))
    return found


def fields_in(text: str) -> dict[str, str]:
    """Out of one record of `scontrol --oneliner show`. A value that has blanks is cut at the first."""
    return {match[1]: match[2] for match in _PAIR.finditer(text)}


def _reason(text: str) -> str:
    return "" if text.strip().casefold() == NO_REASON else text.strip()
