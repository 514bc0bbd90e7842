"""The variables that say which host of a job this is, by the program that sets them, in the order in which they count.

Knows names, and under which circumstances a name means what it seems to mean. What follows from the texts is in
`placing`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A program that sets variables. Empty: it says nothing of that. `only_with`: another variable, without which these
    names may mean something else. `of_a_scheduler`: it speaks of what was allocated, and counts only for a host of
    many: a run on one host of an allocation is no part of a job on all of them."""

    name: str
    nnodes: str = ""
    nproc_per_node: str = ""
    node_rank: str = ""
    host_name: str = ""
    job: str = ""
    attempt: str = ""
    only_with: str = ""
    of_a_scheduler: bool = True


SOURCES = (
    Source(
        name="our own",
        nnodes="UNDERSTUDY_NNODES",
        nproc_per_node="UNDERSTUDY_NPROC_PER_NODE",
        node_rank="UNDERSTUDY_NODE_RANK",
        host_name="UNDERSTUDY_HOST_NAME",
        job="UNDERSTUDY_JOB",
        attempt="UNDERSTUDY_ATTEMPT",
        of_a_scheduler=False,
    ),
    Source(
        name="torchrun's",
        nnodes="PET_NNODES",
        nproc_per_node="PET_NPROC_PER_NODE",
        node_rank="PET_NODE_RANK",
        of_a_scheduler=False,
    ),
    Source(
        name="Slurm's",
        nnodes="SLURM_NNODES",
        nproc_per_node="SLURM_GPUS_ON_NODE",
        node_rank="SLURM_NODEID",
        host_name="SLURMD_NODENAME",
        job="SLURM_JOB_ID",
        attempt="SLURM_RESTART_COUNT",
    ),
    Source(
        name="SkyPilot's",
        nnodes="SKYPILOT_NUM_NODES",
        nproc_per_node="SKYPILOT_NUM_GPUS_PER_NODE",
        node_rank="SKYPILOT_NODE_RANK",
        job="SKYPILOT_TASK_ID",
    ),
    Source(name="LeaderWorkerSet's", nnodes="LWS_GROUP_SIZE", node_rank="LWS_WORKER_INDEX"),
    Source(name="an indexed Job's", node_rank="JOB_COMPLETION_INDEX"),
    Source(name="the downward API's", host_name="NODE_NAME", only_with="KUBERNETES_SERVICE_HOST"),
)
"""The first one that says something of a matter is believed in that matter."""


def told(environment: Mapping[str, str], matter: str, *, of_many: bool) -> Iterator[tuple[str, str]]:
    """Name and text of each variable that says something of it. `matter`: a field of `Source`."""
    for source in SOURCES:
        name: str = getattr(source, matter)
        if not name or (source.of_a_scheduler and not of_many):
            continue
        if source.only_with and not environment.get(source.only_with):
            continue
        if text := environment.get(name, "").strip():
            yield name, text
