"""Many hosts, and coordinators that die or sleep: what a cluster adds to the timed simulation.

Knows hosts, what their agents keep while no coordinator listens, and which coordinator leads (`leadership`). A member
on a host that is cut off goes on until it needs the others. All decisions are the machine's; a coordinator that takes
over begins with the last recorded facts and with nothing else.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

from understudy.foundation.ids import HostId, MemberId, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import Command, DismissStranger, KillMember, RecordGeneration, StartMember
from understudy.protocol.liveness import Sighting
from understudy.protocol.neighbours import keeper_of
from understudy.protocol.policy import Policy
from understudy.protocol.requests import Request
from understudy.protocol.sentences import sentence
from understudy_testkit.simulator.cluster_faults import OF_HOSTS, WHEN_ACTING, ClusterFault, ClusterFaultKind, HostPlan
from understudy_testkit.simulator.faults import Fault
from understudy_testkit.simulator.invariants import Violation
from understudy_testkit.simulator.leadership import Leadership
from understudy_testkit.simulator.member import SimulatedMember
from understudy_testkit.simulator.network import Weather
from understudy_testkit.simulator.phases import MEETING_PHASES, Meeting, MemberPhase
from understudy_testkit.simulator.script import Script, State
from understudy_testkit.simulator.simulation import NOTICED_AFTER, Simulation

KILLED_WITH_HOST = Cause(kind=CauseKind.SIGNAL, detail="killed with its host", exit_code=-9)
KEEPALIVE = (1.0, 2.0)  # seconds until a cut connection is noticed
RECONNECT = (0.01, 2.0)  # seconds until an agent has found the leader
LOOK_AGAIN = 0.05  # seconds between two looks of a member whose copy is on its way
NEEDS_OTHERS = MEETING_PHASES | {MemberPhase.AWAITING, MemberPhase.RECEIVING}


class ClusterSimulation(Simulation):
    def __init__(
        self,
        script: Script,
        policy: Policy,
        *,
        places: Sequence[HostPlan],
        cluster_faults: Sequence[ClusterFault],
        chance: Random,
        faults: tuple[Fault, ...] = (),
        weather: Weather | None = None,
        requests: Sequence[Request] = (),
    ) -> None:
        super().__init__(script, policy, chance=chance, faults=faults, weather=weather, requests=requests)
        self.places = {place.id: place for place in places}
        self.cluster_faults = list(cluster_faults)
        self.host_of: dict[MemberId, HostId] = {}
        self.dead: set[HostId] = set()
        self.cut: set[HostId] = set()
        self.isolated = False  # the coordinator is cut off from all hosts, which reach each other
        self.leadership = Leadership(self)
        self._said: dict[MemberId, dict[type[ev.Event], ev.Event]] = {}
        self._acting: dict[int, dict[Rank, MemberId]] = {}  # which member acts as which rank in a generation
        self._unnoticed: set[MemberId] = set()  # processes that have ended, and whose agent will see it in a moment
        self._ends: dict[HostId, list[ev.MemberLost]] = {place.id: [] for place in places}
        self._held: dict[HostId, list[tuple[SimulatedMember, ev.Event]]] = {place.id: [] for place in places}
        self._orders: dict[HostId, list[StartMember | KillMember]] = {
            place.id: [] for place in places
        }  # while it is cut
        self._undelivered: list[tuple[int, SimulatedMember, Command]] = []
        self._late: dict[HostId, list[tuple[SimulatedMember, Meeting]]] = {place.id: [] for place in places}

    def _begin(self) -> None:
        self._announce_requests()
        for place in self.places.values():
            self.later(self.chance.uniform(0.0, 1.0), self._attach, place.id, self.leadership.term)
        for fault in self.cluster_faults:
            if fault.kind not in WHEN_ACTING:
                self._at(fault.at, self._befall, fault)

    # -- hosts and agents ---------------------------------------------------------------------------------------------

    def reachable(self, host: HostId) -> bool:
        return self.leadership.hears(host) and self.in_reach(host)

    def in_reach(self, host: HostId) -> bool:
        """Does anything get from that host to a coordinator now, and back?"""
        return host not in self.cut and not self.isolated

    def find_the_leader(self) -> None:
        """Every agent that is not connected looks for the leader."""
        for host in self.places:
            if not self.leadership.hears(host):
                self.later(self.chance.uniform(*RECONNECT), self._attach, host, self.leadership.term)

    def _attach(self, host: HostId, term: int) -> None:
        """An agent has found the leader: it tells how processes ended, which live, and what each of them said last."""
        leads = self.leadership.leading and term == self.leadership.term
        if not leads or host in self.dead or not self.in_reach(host) or self.leadership.hears(host):
            return
        self.leadership.attach(host)
        self._held[host].clear()
        for lost in list(self._ends[host]):
            self.tell_machine(lost)
        living = [member for member in self._on(host) if member.alive or member.id in self._unnoticed]
        known = self.machine.hosts.by_id.get(host)
        self.tell_machine(ev.HostHeard(at=self.now, host=host, members=tuple(member.id for member in living)))
        if known is None or not known.present:
            place = self.places[host]
            self.tell_machine(ev.HostJoined(at=self.now, host=host, ranks=place.ranks, spares=place.spares))
        for member in living:
            for event in list(self._said.get(member.id, {}).values()):
                self.send(member, event)

    def _on(self, host: HostId) -> list[SimulatedMember]:
        return [member for member in self.members.values() if self.host_of[member.id] == host]

    def tell_sightings(self, seen: list[Sighting]) -> None:
        """Each agent of its own members; one that is not heard keeps nothing of it."""
        for host in self.places:
            own = tuple(sighting for sighting in seen if self.host_of[sighting.member] == host)
            asked = self.now < self._closely_until
            if (own or asked) and self.in_reach(host) and host not in self.dead and self.leadership.is_told_by(host):
                event = ev.ActivityObserved(at=self.now, sightings=own, host=host)
                self.leadership.receive(self.leadership.term, event)

    def on_watch_closely(self) -> None:
        super().on_watch_closely()
        self.later(NOTICED_AFTER, self._look_around)

    # -- faults of the cluster --------------------------------------------------------------------------------

    def _befall(self, fault: ClusterFault) -> None:
        host = fault.host
        if fault.kind is ClusterFaultKind.COORDINATOR_ISOLATED:
            self._isolate(fault)
        elif fault.kind not in OF_HOSTS:
            self.leadership.befall(fault)
        elif fault.lasts is None and not self.machine.generation:
            self.later(1.0, self._befall, fault)  # a job whose hosts never all come waits for them without an end
        elif host is not None and host not in self.dead and host not in self.cut:
            self.note(fault.kind, f" {host}")
            killed = fault.kind is ClusterFaultKind.HOST_KILLED
            (self.dead if killed else self.cut).add(host)
            for member in self._on(host) if killed else []:
                self.end(member, KILLED_WITH_HOST)
                self._unnoticed.discard(member.id)
            for place in [place for place in self.peer_memory if killed and place[0] == host]:
                del self.peer_memory[place]
            delay = self.chance.uniform(0.0, 0.05) if killed else self.chance.uniform(*KEEPALIVE)
            self.later(delay, self._notice_silence, host)
            if fault.lasts is not None:
                self.later(fault.lasts, self._revive if killed else self._heal, host)

    def _isolate(self, fault: ClusterFault) -> None:
        if self.isolated or not self.leadership.leading:
            return
        self.note(fault.kind)
        self.isolated = True
        for host in self.places:
            self.later(self.chance.uniform(*KEEPALIVE), self._notice_silence, host)
        self.later(fault.lasts or 5.0, self._end_isolation)

    def _end_isolation(self) -> None:
        """Connections that have not noticed it deliver in the end."""
        self.isolated = False
        self.story.append(f"{self.now:.2f} the coordinator reaches the hosts again")
        waiting, self._undelivered = self._undelivered, []
        for term, member, command in waiting:
            if self.leadership.hears(self.host_of[member.id]):
                self._deliver_from(term, member, command)
        for host in self.places:
            if host not in self.cut and host not in self.dead:
                self._deliver_what_waited(host)
                self.later(self.chance.uniform(*RECONNECT), self._attach, host, self.leadership.term)

    def note(self, kind: ClusterFaultKind, words: str = "") -> None:
        self.fired[kind.value] += 1
        self.story.append(f"{self.now:.2f} fault: {kind.value}{words}")

    def _notice_silence(self, host: HostId) -> None:
        if host in self.dead or not self.in_reach(host):
            self._end_line(host)

    def _revive(self, host: HostId) -> None:
        """A host that died comes back empty, with an agent that knows nothing."""
        self.dead.discard(host)
        self._ends[host].clear()
        self._end_line(host)  # should that not have been seen
        self.later(self.chance.uniform(*RECONNECT), self._attach, host, self.leadership.term)

    def _end_line(self, host: HostId) -> None:
        if self.leadership.is_told_by(host):
            self.leadership.detach(host)
            self.tell_machine(ev.HostSilent(at=self.now, host=host, why="the connection ended"))

    def _heal(self, host: HostId) -> None:
        """If the cut was short enough, not even the connections have noticed it."""
        self.cut.discard(host)
        self.story.append(f"{self.now:.2f} host {host} is connected again")
        self._deliver_what_waited(host)
        late, self._late[host] = self._late[host], []
        for member, meeting in late:
            if member.alive and member.meeting == meeting:
                self.arrive(member, meeting)
        for member in self._on(host):
            if member.phase in NEEDS_OTHERS and (member.meeting is None or self.is_complete(member.meeting)):
                self._schedule(member)
        self.later(self.chance.uniform(*RECONNECT), self._attach, host, self.leadership.term)

    def _deliver_what_waited(self, host: HostId) -> None:
        held, self._held[host] = self._held[host], []
        for member, event in held:
            self.send(member, event)
        orders, self._orders[host] = self._orders[host], []
        for command in orders:
            self._order(host, command)

    # -- commands -----------------------------------------------------------------------------------------------------

    def obey(self, commands: tuple[Command, ...], heard_of_commit: bool) -> None:
        dies_after = self._when_to_die(len(commands))
        for number, command in enumerate(commands):
            if number == dies_after:
                self.leadership.die(ClusterFaultKind.COORDINATOR_ACTING)
            if not self.leadership.leading:
                self.story.append(f"not carried out: {commands[number:]}")
                return
            recorded = isinstance(command, RecordGeneration)  # with all that the machine knows by now
            super().obey((self.machine.round.record() if recorded else command,), heard_of_commit)

    def _when_to_die(self, commands: int) -> int | None:
        due = commands > 1 and self._take_fault(ClusterFaultKind.COORDINATOR_ACTING)
        return self.chance.randrange(1, commands) if due else None

    def _take_fault(self, kind: ClusterFaultKind) -> bool:
        for fault in self.cluster_faults:
            if fault.kind is kind and self.now >= fault.at:
                self.cluster_faults.remove(fault)
                return True
        return False

    def _carry_out(self, command: Command) -> None:
        match command:
            case RecordGeneration(holders=holders):
                self._check_places([member for _, member in holders])
                self.leadership.record()
                self._forsake()
                if self._take_fault(ClusterFaultKind.COORDINATOR_AFTER_RECORD):
                    self.leadership.die(ClusterFaultKind.COORDINATOR_AFTER_RECORD)
            case StartMember(member=id_, host=host):
                self.host_of[id_] = host
                if host not in self.dead:
                    self._order(host, command)
            case KillMember(member=id_):
                if id_ in self.host_of:  # else the coordinator that meant to start it died before
                    self._order(self.host_of[id_], command)
            case DismissStranger(member=id_, reason=reason):
                self.end(self.members[id_], Cause(kind=CauseKind.DISMISSED, detail=sentence(reason), exit_code=-9))
            case _:
                super()._carry_out(command)

    def _check_places(self, holders: Iterable[MemberId]) -> None:
        members = self.machine.roster.members
        for host, count in Counter(members[holder].host for holder in holders if holder in members).items():
            if count > self.places[host].ranks + self.places[host].spares:
                raise Violation(f"9: host {host} was given {count} ranks, more than it has places")

    def _order(self, host: HostId, command: StartMember | KillMember) -> None:
        """A connection that outlives a cut delivers in the end; one that has ended does not."""
        if not self.leadership.hears(host):
            return
        if not self.in_reach(host):
            self._orders[host].append(command)
        elif isinstance(command, StartMember) or command.member in self.members:
            super()._carry_out(command)

    # -- messages -----------------------------------------------------------------------------------------------------

    def send(self, member: SimulatedMember, event: ev.Event) -> None:
        host = self.host_of[member.id]
        self._said.setdefault(member.id, {})[type(event)] = event
        if not self.in_reach(host):
            self._held[host].append((member, event))
        elif self.leadership.is_told_by(host):
            at = self.network.arrival(self.now, member.id, event, upward=True)
            if at is not None:
                self._at(at, self.leadership.receive, self.leadership.term, event)

    def transmit(self, member: SimulatedMember, command: Command) -> None:
        self.transmit_from(self.leadership.term, member, command)

    def transmit_from(self, term: int, member: SimulatedMember, command: Command) -> None:
        at = self.network.arrival(self.now, member.id, command, upward=False)
        if at is not None:
            self._at(at, self._deliver_from, term, member, command)

    def _deliver_from(self, term: int, member: SimulatedMember, command: Command) -> None:
        """An agent that has obeyed a newer coordinator refuses the older one."""
        host = self.host_of[member.id]
        if self.isolated and host not in self.cut:
            self._undelivered.append((term, member, command))  # unless the connection ends meanwhile
        elif self.in_reach(host) and self.leadership.obeys(host, term):
            self._deliver(member, command)

    def on_gone(self, member: SimulatedMember, cause: Cause) -> None:
        host = self.host_of[member.id]
        if host not in self.dead:
            self._unnoticed.add(member.id)
            self.later(self.chance.uniform(0.001, 0.1), self._tell_of_loss, host, member.id, cause)

    def _tell_of_loss(self, host: HostId, member: MemberId, cause: Cause) -> None:
        if member not in self._unnoticed:
            return  # its host died first
        self._unnoticed.discard(member)
        self._said.pop(member, None)
        lost = ev.MemberLost(at=self.now, member=member, cause=cause)
        self._ends[host].append(lost)
        self._pass_on_loss(host, lost)

    def _pass_on_loss(self, host: HostId, lost: ev.MemberLost) -> None:
        """A connection that outlives a cut delivers in the end."""
        if not self.in_reach(host):
            self.later(1.0, self._pass_on_loss, host, lost)
        elif self.leadership.is_told_by(host):
            self.leadership.receive(self.leadership.term, lost)

    def tell_machine(self, event: ev.Event) -> None:
        if self.leadership.leading:
            super().tell_machine(event)

    def begin_leadership(self, commands: tuple[Command, ...]) -> None:
        self._tick_at = None
        self.obey(commands, heard_of_commit=self.machine.round.state.established)
        self._plan_tick()
        self.find_the_leader()

    def _forsake(self) -> None:
        """Members that cannot be told that they are none any more: what they do is refused."""
        for member in self.members.values():
            lost = member.alive and member.id not in self.machine.roster.members
            if lost and not self.reachable(self.host_of[member.id]):
                member.forsaken = True

    # -- copies on other hosts ----------------------------------------------------------------------------------------

    @property
    def has_other_hosts(self) -> bool:
        return True

    def host_for(self, member: SimulatedMember) -> HostId:
        return self.host_of[member.id]

    def on_acting(self, member: SimulatedMember) -> None:
        super().on_acting(member)
        assert member.rank is not None
        self._acting.setdefault(member.acting, {})[member.rank] = member.id

    def keeper_for(self, member: SimulatedMember) -> SimulatedMember | None:
        assert member.rank is not None
        ids = self._acting[member.acting]
        keeper = keeper_of(member.rank, {rank: self.host_of[id_] for rank, id_ in ids.items()})
        return None if keeper is None else self.members[ids[keeper]]

    def reaches_keeper(self, member: SimulatedMember) -> bool:
        """A member that has heard of a new generation has broken its connections."""
        keeper = self.keeper_for(member)
        if keeper is None:
            return True
        there = keeper.alive and not keeper.hung and keeper.acting == keeper.heard == member.acting
        cut = self.host_of[member.id] in self.cut or self.host_of[keeper.id] in self.cut
        return there and not cut

    def save(self, member: SimulatedMember, state: State) -> bool:
        """A copy on another host is whole at the next fence. If the generation was abandoned before, it may be."""
        super().save(member, state)
        keeper = self.keeper_for(member) if member.acting in self._acting else None
        if not self.script.peer_snapshot_every or keeper is None:
            return True
        early = member.heard > member.acting and self.chance.random() < 0.5
        if early or not self.reaches_keeper(member):
            return False
        assert member.rank is not None
        places = {self.host_of[member.id], self.host_of[keeper.id]}
        self.write_copy(self.host_of[keeper.id], member.rank, state)
        for host, rank in list(self.peer_memory) if len(state) > member.target else []:
            if rank == member.rank and host not in places:
                del self.peer_memory[host, rank]
        return True

    def keeps(self, member: SimulatedMember) -> tuple[tuple[Rank, StepNumber], ...]:
        here = self.host_of[member.id]
        return tuple(
            (rank, StepNumber(len(state)))
            for (host, rank), states in self.peer_memory.items()
            if host == here and rank != member.rank
            for state in states
        )

    def within_reach(self, rank: Rank) -> set[int]:
        """Where members are, of which none must be about to be noticed as lost."""
        seated = self.machine.roster.seated()
        hosts = {self.host_of[m.id] for m in seated if self.members[m.id].alive and not self.members[m.id].hung}
        hosts -= self.cut | self.dead
        return {len(state) for host in hosts for state in self.peer_memory.get((host, rank), ())}

    def forget_after(self, member: SimulatedMember, step: int) -> None:
        if not self.script.peer_snapshot_every:
            super().forget_after(member, step)
            return
        for (host, rank), states in list(self.peer_memory.items()):
            if host == self.host_of[member.id]:
                self.peer_memory[host, rank] = tuple(state for state in states if len(state) <= step)

    def _awaits_keeper(self, member: SimulatedMember) -> bool:
        """No rank comes to a fence before the copy of its state is on another host, if that can be."""
        first = member.phase is MemberPhase.APPLYING and not member.established and self.script.peer_snapshot_every > 0
        due = first or (member.phase is MemberPhase.COLLECTIVE and member.saving is not None)
        return due and member.heard == member.acting and not self.reaches_keeper(member)

    # -- members on hosts that are cut off ----------------------------------------------------------------------------

    def _move(self, member: SimulatedMember, ticket: int) -> None:
        if member.ticket == ticket and not member.hung and self._awaits_keeper(member):
            self.later(LOOK_AGAIN, self._move, member, ticket)
        elif member.phase not in NEEDS_OTHERS or self.host_of[member.id] not in self.cut:
            super()._move(member, ticket)

    def arrive(self, member: SimulatedMember, meeting: Meeting) -> None:
        host = self.host_of[member.id]
        if host in self.cut:
            self._late[host].append((member, meeting))
        else:
            super().arrive(member, meeting)

    def _giver(self, rank: Rank, step: int | None, leaver: bool) -> SimulatedMember | None:
        giver = super()._giver(rank, step, leaver)
        gone = giver is not None and (giver.forsaken or self.host_of[giver.id] in self.cut)
        return None if gone else giver
