"""What a scheduler's word about a node leads to: a request to drain or to use its host, or nothing. Pure.

Only what this watch has asked for is called off by it: a host that an operator drains stays drained, however idle its
node may be. A node that does not answer its scheduler is no evidence: the job's own connection to the host is faster
(`protocol.host_events`), and a host that trains may well have lost its scheduler's daemon.
"""

import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from understudy.foundation.ids import HostId
from understudy.protocol.requests import DrainHost, Request, UndrainHost


class Verdict(enum.Enum):
    WANTED_BACK = "wanted back"
    IN_USE = "in use"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """`reason`: in the scheduler's words; may be empty. `state`: the same, for people."""

    host: HostId
    verdict: Verdict
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsKnown:
    """`present`: hosts of the job. `drained`: those of them to which nothing goes. `asked`: hosts whose drain this
    watch has asked for."""

    present: Collection[HostId]
    drained: Collection[HostId]
    asked: Collection[HostId]


def requests(seen: Iterable[NodeSeen], known: HostsKnown, scheduler: str, at: float) -> tuple[Request, ...]:
    """The same again until the job has done it: it may have refused, for want of a spare."""
    found: list[Request] = []
    for node in seen:
        if node.host not in known.present:
            continue
        drained = node.host in known.drained
        if node.verdict is Verdict.WANTED_BACK and not drained:
            found.append(DrainHost(at=at, host=node.host, reason=_why(node, scheduler)))
        elif node.verdict is Verdict.IN_USE and drained and node.host in known.asked:
            found.append(UndrainHost(at=at, host=node.host, reason=_why(node, scheduler)))
    return tuple(found)


def _why(node: NodeSeen, scheduler: str) -> str:
    told = f": {node.reason}" if node.reason else ""
    return f"{scheduler} says that node {node.host} is {node.state}{told}"
