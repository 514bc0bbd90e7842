"""What an adapter of a scheduler must answer. A draft: understudy has no adapter, and no command asks one yet.

Two questions are enough to run under a scheduler. Where does this process belong? And which hosts of the job does the
scheduler want back? Membership stays the protocol's: a notice is evidence, as an alert is, and leads to a request.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from understudy.foundation.ids import HostId


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`hosts` and `ranks_per_host`: those of the job, spare hosts apart. `place`: of this host among those with ranks;
    None leaves it to the order of arrival. `host`: its name. `attempt`: how often the scheduler has started the job
    again; it belongs to the name of the job, because a store still holds the end of the former attempt."""

    hosts: int
    ranks_per_host: int
    host: HostId
    place: int | None = None
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """The scheduler wants a host back (cordon, drain, preemption). `seconds`: until it takes the host; None if it
    waits. `reason`: in the scheduler's words."""

    host: HostId
    reason: str
    seconds: float | None = None


@runtime_checkable
class Scheduler(Protocol):
    def placement(self, environment: Mapping[str, str]) -> Placement | None:
        """Pure: where the process with this environment belongs. None: this scheduler did not start it."""
        ...

    async def notices(self) -> tuple[Notice, ...]:
        """Every host that the scheduler wants back now. A host that is missing here is wanted back no more."""
        ...
