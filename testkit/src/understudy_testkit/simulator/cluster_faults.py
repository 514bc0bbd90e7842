"""What befalls hosts and coordinators, as data. Knows when; `cluster` knows what it means."""

import enum
from dataclasses import dataclass

from understudy.foundation.ids import HostId


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """A host of the cluster. `ranks` 0: for spares only."""

    id: HostId
    ranks: int
    spares: int


class ClusterFaultKind(enum.Enum):
    HOST_KILLED = "host killed"  # with all its processes; it comes back empty
    HOST_CUT = "host cut off"  # its processes live, and are not heard
    COORDINATOR = "coordinator killed"
    COORDINATOR_AFTER_RECORD = "coordinator killed after recording"  # the next time that it records something
    COORDINATOR_ACTING = "coordinator killed while acting"  # the next time that it has several things to do
    COORDINATOR_ISOLATED = "coordinator cut off from all hosts"  # they go on together, and are not heard
    COORDINATOR_PAUSED = "coordinator paused"  # it wakes up and does not know what it missed


OF_HOSTS = (ClusterFaultKind.HOST_KILLED, ClusterFaultKind.HOST_CUT)
WHEN_ACTING = (ClusterFaultKind.COORDINATOR_AFTER_RECORD, ClusterFaultKind.COORDINATOR_ACTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFault:
    """`at`: not before this second. `lasts`: seconds until the host is back or the coordinator awake; None: never."""

    kind: ClusterFaultKind
    at: float
    host: HostId | None = None
    lasts: float | None = None
