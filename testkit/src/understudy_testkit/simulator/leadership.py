"""Which simulated coordinator leads, which hosts hear it, what the state store keeps, and those that sleep through
their removal.

Knows terms. The machine of the leader is the simulation's own; a coordinator that was paused has its old machine, and
acts with it when it wakes up, until the keeper or an agent refuses it.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from understudy.foundation.ids import HostId, MemberId
from understudy.protocol import events as ev
from understudy.protocol.commands import (
    AbandonGeneration,
    AskCheckpoints,
    AskStep,
    AssignRank,
    Command,
    KeepAgreed,
    KillMember,
    RecordDecision,
    RecordGeneration,
    ReleaseMembers,
    ResumeAt,
    WatchClosely,
)
from understudy.protocol.job import JobMachine
from understudy.protocol.state import State
from understudy.protocol.takeover import facts_of, take_over
from understudy_testkit.simulator.cluster_faults import ClusterFault, ClusterFaultKind
from understudy_testkit.simulator.invariants import Violation

if TYPE_CHECKING:
    from understudy_testkit.simulator.cluster import ClusterSimulation

ELECTION = (0.5, 5.0)  # seconds without a leader


@dataclass(slots=True)
class Sleeper:
    """A paused coordinator: what it knew, which hosts were connected to it, and what has arrived since."""

    term: int
    machine: JobMachine
    hosts: set[HostId]
    inbox: list[ev.Event] = field(default_factory=list)
    broken: set[HostId] = field(default_factory=set)  # connections that ended meanwhile


class Leadership:
    def __init__(self, world: "ClusterSimulation") -> None:
        self._world = world
        self.leading, self.term = True, 1
        self.facts: State | None = None
        self.refused_records = 0
        self._attached: set[HostId] = set()
        self._obeyed: dict[HostId, int] = {}
        self._sleeping: Sleeper | None = None

    # -- connections --------------------------------------------------------------------------------------------------

    def hears(self, host: HostId) -> bool:
        return self.leading and host in self._attached

    def is_told_by(self, host: HostId) -> bool:
        """Also a coordinator that sleeps is told things."""
        return self.hears(host) or (self._sleeping is not None and host in self._sleeping.hosts)

    def attach(self, host: HostId) -> None:
        self._attached.add(host)
        self._obeyed[host] = self.term
        if self._sleeping is not None:
            self._sleeping.hosts.discard(host)
            self._sleeping.broken.add(host)

    def detach(self, host: HostId) -> None:
        self._attached.discard(host)
        if self._sleeping is not None:
            self._sleeping.hosts.discard(host)
            self._sleeping.broken.add(host)

    def obeys(self, host: HostId, term: int) -> bool:
        return term >= self._obeyed.get(host, 0)

    def receive(self, term: int, event: ev.Event) -> None:
        sleeper = self._sleeping
        if sleeper is not None and sleeper.term == term:
            sleeper.inbox.append(event)
        elif self.leading and term == self.term:
            self._world.tell_machine(event)

    # -- the end of a leadership --------------------------------------------------------------------------------------

    def befall(self, fault: ClusterFault) -> None:
        if not self.leading:
            return
        if fault.kind is ClusterFaultKind.COORDINATOR_PAUSED:
            self._sleeping = Sleeper(self.term, self._world.machine, set(self._attached))
            self._world.later(fault.lasts or 6.0, self._wake, self._sleeping)
        away = fault.lasts if fault.kind is ClusterFaultKind.COORDINATOR else None
        self.die(fault.kind, away)

    def die(self, kind: ClusterFaultKind, away: float | None = None) -> None:
        """`away`: seconds until another one leads."""
        self._world.note(kind)
        self.leading = False
        self._attached.clear()
        election = self._world.chance.uniform(*ELECTION)
        self._world.later(max(election, away or 0.0), self._elect, self.term)

    def _elect(self, after: int) -> None:
        if self.leading or after != self.term:
            return
        self.leading, self.term = True, self.term + 1
        world = self._world
        world.story.append(f"{world.now:.2f} a coordinator takes over, term {self.term}")
        commands: tuple[Command, ...] = ()
        if self.facts is None:
            world.machine = JobMachine(world.policy)
        else:
            world.machine, commands = take_over(world.policy, self.facts, world.now)
        world.begin_leadership(commands)

    def record(self) -> None:
        self.facts = facts_of(self._world.machine, self._world.now)

    # -- a coordinator that slept -------------------------------------------------------------------------------------

    def _wake(self, sleeper: Sleeper) -> None:
        world = self._world
        world.story.append(f"{world.now:.2f} the coordinator of term {sleeper.term} wakes up")
        if self._sleeping is sleeper:  # else its successor sleeps by now, too, and is told things meanwhile
            self._sleeping = None
        if self.term == sleeper.term:  # no other has taken its place yet
            self.leading, self._attached = True, set(sleeper.hosts)
            world.begin_leadership(())
            for host in sorted(sleeper.broken):
                world.tell_machine(ev.HostSilent(at=world.now, host=host, why="the connection ended"))
            for event in sleeper.inbox:
                world.tell_machine(event)
            return
        self._go_on_deposed(sleeper)

    def _go_on_deposed(self, sleeper: Sleeper) -> None:
        """It reads what has arrived, sees that connections have ended, and gives those hosts up after a while."""
        now = self._world.now
        silent = [ev.HostSilent(at=now, host=host, why="the connection ended") for host in sorted(sleeper.broken)]
        policy = self._world.policy
        waits = (0.0, policy.host_patience, policy.takeover_patience + policy.host_patience)
        ticks = [ev.Tick(at=now + wait) for wait in waits]
        for event in (*sleeper.inbox, *silent, *ticks):
            for command in sleeper.machine.handle(event):
                if isinstance(command, RecordGeneration):
                    self.refused_records += 1  # the keeper names another leader: it is deposed, and ends
                    return
                self._act_asleep(sleeper, command)

    def _act_asleep(self, sleeper: Sleeper, command: Command) -> None:
        """What it does before it notices reaches only agents that have not met its successor."""
        world = self._world
        world.story.append(f"the deposed coordinator of term {sleeper.term}: {command}")
        told: tuple[MemberId, ...] = ()
        match command:
            case RecordDecision() | WatchClosely():
                return
            case KillMember(member=id_) | AssignRank(member=id_):
                told = (id_,)
            case AbandonGeneration(members=ids) | ResumeAt(members=ids) | ReleaseMembers(members=ids):
                told = ids
            case AskStep(members=ids) | KeepAgreed(members=ids) | AskCheckpoints(members=ids):
                told = ids  # it asks, or says what was so in a generation that it has recorded
            case _:
                raise Violation(f"5: a deposed coordinator acts without a record: {command!r}")
        if isinstance(command, ResumeAt):
            world.invariants.check_commands((command,), heard_of_commit=False)
        for id_ in told:
            member = world.members.get(id_)
            if member is None or not member.alive:
                continue
            host = world.host_of[id_]
            if host not in sleeper.hosts or not self.obeys(host, sleeper.term):
                continue
            if isinstance(command, KillMember):
                world.kill_for(member, command)
            else:
                world.transmit_from(sleeper.term, member, command)
