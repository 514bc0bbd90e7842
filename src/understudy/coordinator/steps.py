"""Which steps the hosts say that their ranks have committed, for people and monitors. The machine never hears of it.

A report costs the same however many hosts there are; what the whole job has committed is worked out when it is asked
for. Owned by the coordinator; nothing of it is kept for a successor, which every host tells it again.
"""

from dataclasses import dataclass

from understudy.foundation.clock import Clock
from understudy.foundation.ids import Generation, HostId
from understudy.protocol.job import JobMachine
from understudy.protocol.roster import Member, Standing


@dataclass(frozen=True, slots=True)
class ReportedSteps:
    """`since`: when `smallest` became what it is."""

    smallest: int
    largest: int
    since: float


@dataclass(frozen=True, slots=True)
class Committed:
    """`step`: what every rank of the world has committed. `unchanged_for`: seconds for which it has stood still. None:
    not known yet."""

    step: int | None = None
    unchanged_for: float | None = None


class HostSteps:
    def __init__(self, clock: Clock) -> None:
        self.by_host: dict[HostId, ReportedSteps] = {}
        self._clock = clock
        self._resumed: tuple[Generation, int] | None = None

    def told(self, host: HostId, smallest: int, largest: int) -> None:
        before = self.by_host.get(host)
        unchanged = before is not None and before.smallest == smallest
        since = before.since if before is not None and unchanged else self._clock.now()
        self.by_host[host] = ReportedSteps(smallest, largest, since)

    def resumes(self, generation: Generation, step: int) -> None:
        """The world goes on there. A later generation does not take that back, and what hosts told before is true of
        them no further than up to it. The order may be given several times."""
        if self._resumed is not None and self._resumed[0] == generation:
            return
        self._resumed = generation, step
        now = self._clock.now()
        self.by_host = {
            host: told if told.smallest <= step else ReportedSteps(step, step, now)
            for host, told in self.by_host.items()
        }

    def of(self, host: HostId) -> int | None:
        """What the ranks on this host have committed. One that was just given a rank has told nothing of it yet."""
        told, certain = self.by_host.get(host), self._certain
        if told is None or (certain is not None and certain > told.smallest):
            return certain
        return told.smallest

    @property
    def _certain(self) -> int | None:
        return None if self._resumed is None else self._resumed[1]

    def committed(self, machine: JobMachine) -> Committed:
        """The smallest step over the hosts whose ranks train, once all of them have told theirs. Never less than where
        the last recovery resumed: that much is certain, and a host needs a moment to tell it."""
        hosts = {member.host for member in training_members(machine)}
        if not hosts and machine.released and self.by_host:  # all have left: the last one to tell is right
            hosts = {max(self.by_host, key=lambda host: self.by_host[host].smallest)}
        known = [self.by_host.get(host) for host in hosts]
        told = [one for one in known if one is not None]
        certain = self._certain
        if not told or len(told) < len(known):
            return Committed(certain)
        step = min(one.smallest for one in told)
        if certain is not None and certain > step:
            return Committed(certain)
        # The first host that reached the step: one that came later by a recovery has not moved the job.
        since = min(one.since for one in told if one.smallest == step)
        return Committed(step, max(0.0, self._clock.now() - since))


def training_members(machine: JobMachine) -> list[Member]:
    """The members that train. Not those whose rank is absent from the world, and not those that only prepare for it."""
    holders = ((rank, machine.roster.members[id_]) for rank, id_ in machine.roster.holders.items())
    absent = machine.round.state.absent
    return [member for rank, member in holders if rank not in absent and member.standing is Standing.ACTIVE]
