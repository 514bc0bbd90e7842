"""The interface between the API and the leader of a job: a coordinator in the same process, or one of several.

The API looks through `machine` and asks through `handle`. It never changes what it sees.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from understudy.api.event_stream import EventStream
from understudy.coordinator.coordinator import Coordinator
from understudy.coordinator.service import Service
from understudy.coordinator.steps import Committed, training_members
from understudy.errors import UnderstudyError
from understudy.foundation.clock import Clock
from understudy.foundation.ids import HostId, MemberId
from understudy.ledger.goodput import Goodput
from understudy.protocol.events import Event
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.job import JobMachine
from understudy.protocol.requests import Request
from understudy.wire.inventory import HostInventory


class NotLeading(UnderstudyError):
    """This one decides nothing now; `advise` names the leader, as far as it is known."""

    def __init__(self, leads: bool, leader: str) -> None:
        super().__init__("no host has joined the job yet" if leads else "this coordinator does not lead the job")
        self.leads, self._leader = leads, leader

    def advise(self, leader_url: str) -> str:
        """`leader_url`: of the API of the one that leads; empty: not known here."""
        if self.leads:
            return "ask again when its hosts have come"
        if leader_url:
            return f"ask the one that leads: {self._leader or 'its name is not known'}, with its API on {leader_url}"
        if self._leader:
            return f"ask the one that leads: {self._leader} (for agents); where its API is, is not known here"
        return "ask again when one leads"


class JobInterface(Protocol):
    """What the API needs from the leader of a job."""

    @property
    def name(self) -> str: ...

    @property
    def event_stream(self) -> EventStream: ...

    def machine(self) -> JobMachine | None:
        """None: this one does not lead, or no host has come yet."""

    def leads(self) -> bool: ...

    def leader(self) -> str:
        """The name of the leader; empty: unknown."""

    def handle(self, request: Request) -> None:
        """Raises `NotLeading`."""

    def now(self) -> float:
        """By the clock of the machine."""

    def committed(self) -> Committed:
        """What the whole job has committed, and for how long that has not changed."""

    def goodput(self) -> Goodput | None:
        """Where the job's time went up to now."""

    def steps(self) -> Mapping[MemberId, int]:
        """The newest step of members, where it is known."""

    def inventories(self) -> Mapping[HostId, HostInventory]:
        """What the hosts that are present told of themselves."""

    def certificate_ends(self) -> Mapping[HostId, int]:
        """When the certificates of hosts end, as Unix time, where it is known."""

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """What was refused elsewhere, by where and kind."""


class OneHost:
    """`understudy run`: coordinator and agent live in this process. `tell`: hands an event to the coordinator in the
    way in which the agent does, so that deadlines are looked at."""

    def __init__(
        self,
        name: str,
        coordinator: Coordinator,
        *,
        clock: Clock,
        event_stream: EventStream,
        tell: Callable[[Event], None],
        steps: Callable[[], Mapping[MemberId, int]],
        inventory: HostInventory | None = None,
    ) -> None:
        self.name, self.event_stream = name, event_stream
        self._coordinator, self._clock, self._tell, self._steps = coordinator, clock, tell, steps
        self._inventories = {THIS_HOST: inventory or HostInventory()}

    def machine(self) -> JobMachine | None:
        return self._coordinator.machine

    def leads(self) -> bool:
        return True

    def leader(self) -> str:
        return "this process"

    def handle(self, request: Request) -> None:
        self._tell(request)

    def now(self) -> float:
        return self._clock.now()

    def committed(self) -> Committed:
        return self._coordinator.steps.committed(self._coordinator.machine)

    def goodput(self) -> Goodput | None:
        return self._coordinator.goodput

    def steps(self) -> Mapping[MemberId, int]:
        return self._steps()

    def inventories(self) -> Mapping[HostId, HostInventory]:
        return self._inventories

    def certificate_ends(self) -> Mapping[HostId, int]:
        return {}

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {}


class ManyHosts:
    """`understudy coordinator`: leads now, or stands by."""

    def __init__(self, service: Service, *, clock: Clock, event_stream: EventStream) -> None:
        self.event_stream = event_stream
        self._service, self._clock = service, clock

    @property
    def name(self) -> str:
        return self._service.job

    def machine(self) -> JobMachine | None:
        leader = self._service.leader
        if leader is None or not leader.leading() or leader.coordinator is None:
            return None
        return leader.coordinator.machine

    def leads(self) -> bool:
        leader = self._service.leader
        return leader is not None and leader.leading()

    def leader(self) -> str:
        return self._service.leads

    def handle(self, request: Request) -> None:
        leader = self._service.leader
        if leader is None or not leader.leading():
            raise NotLeading(False, self._service.leads)
        leader.request(request)

    def now(self) -> float:
        return self._clock.now()

    def committed(self) -> Committed:
        leader, machine = self._service.leader, self.machine()
        if leader is None or leader.coordinator is None or machine is None:
            return Committed()
        return leader.coordinator.steps.committed(machine)

    def goodput(self) -> Goodput | None:
        leader, machine = self._service.leader, self.machine()
        if leader is None or leader.coordinator is None or machine is None:
            return None
        return leader.coordinator.goodput

    def steps(self) -> Mapping[MemberId, int]:
        """A host tells the smallest step of its ranks, not which of them has it."""
        leader, machine = self._service.leader, self.machine()
        if leader is None or leader.coordinator is None or machine is None:
            return {}
        steps = leader.coordinator.steps
        known = {member.id: steps.of(member.host) for member in training_members(machine)}
        return {member: step for member, step in known.items() if step is not None}

    def inventories(self) -> Mapping[HostId, HostInventory]:
        """A lost host may have come back under another name, with the same devices; it must not contradict itself."""
        leader, machine = self._service.leader, self.machine()
        if leader is None or machine is None:
            return {}
        hosts = machine.hosts.by_id
        return {host: told for host, told in leader.inventories.items() if host in hosts and hosts[host].present}

    def certificate_ends(self) -> Mapping[HostId, int]:
        leader = self._service.leader
        return {} if leader is None else leader.lines.certificate_ends()

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        leader = self._service.leader
        dropped = {} if leader is None else dict(leader.lines.dropped)
        return {"agents": dict(self._service.refused), "dropped": dropped}
