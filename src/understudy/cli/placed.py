"""The place of this host in its job, from the flags of a command: asks this machine what `placement` cannot know.

`understudy run` and `understudy coordinator` come here, so that both mean the same job where the same scheduler has
started them.
"""

import argparse
import socket
from collections.abc import Mapping

from understudy.agent import inventory
from understudy.placement.placing import Flags, Machine, Placement, attempt_of, job_key, job_of, place


def placement_of(args: argparse.Namespace, environment: Mapping[str, str]) -> Placement:
    """Of a host. `args`: of `understudy run`."""
    flags = Flags(
        nnodes=args.nnodes,
        nproc_per_node=args.nproc_per_node,
        node_rank=args.node_rank,
        host_name=args.host_name,
        job=args.job,
        attempt=args.attempt,
        of_many=bool(args.coordinator),
    )
    return place(flags, environment, _this_machine(environment))


def key_of_coordinator(args: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """The name of the job and its attempt. `args`: of `understudy coordinator`."""
    flags = Flags(job=args.job, attempt=args.attempt, of_many=True)
    return job_key(job_of(flags, environment).value, attempt_of(flags, environment).value)


def _this_machine(environment: Mapping[str, str]) -> Machine:
    return Machine(
        name=socket.gethostname,
        devices=lambda: len(inventory.read(environment).devices),
        cpus=inventory.cpus,
    )
