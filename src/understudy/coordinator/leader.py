"""One leadership: from the day a coordinator leads to its end. Joins the machine, the state store and the connections
to hosts.

The first host brings the settings of the job; every later one must agree with them. A leader that finds a run under way
goes on with it from the kept facts as soon as one of its hosts is there (`runs`). Before anything is taken or given it
looks whether it still leads: it may have slept for long.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from understudy.coordinator import origin, persisted
from understudy.coordinator.coordinator import Coordinator
from understudy.coordinator.effects import Journal
from understudy.coordinator.history import Historian, History
from understudy.coordinator.hosts import HostConnection, HostConnections
from understudy.coordinator.paces import Paces
from understudy.coordinator.runs import NOTHING_PAST, Identity, Past
from understudy.coordinator.state_store import StateStore
from understudy.errors import Deposed, WireError
from understudy.foundation.clock import Clock
from understudy.foundation.ids import Generation, HostId, MemberId, Rank
from understudy.ledger.goodput import Goodput
from understudy.protocol import events as ev
from understudy.protocol.commands import DismissStranger, StopJob
from understudy.protocol.job import JobMachine
from understudy.protocol.policy import Policy
from understudy.protocol.reasons import Code, because
from understudy.protocol.requests import Request
from understudy.protocol.sentences import sentence
from understudy.protocol.state import State
from understudy.protocol.takeover import active, facts_of, take_over
from understudy.wire import host_messages as wire
from understudy.wire import versions
from understudy.wire.inventory import HostInventory
from understudy.wire.messages import Measured

_SHORTEST_WAIT = 0.02
_AFTER_A_FAILURE = 1.0  # seconds until a deadline that could not be handled is looked at again
_OF_ONE_GENERATION = (
    ev.StepTold,
    ev.DigestTold,
    ev.BadStateTold,
    ev.PositionReported,
    ev.MemberResumed,
    ev.RecoveryFailed,
    ev.MemberFinished,
    ev.ContactLost,
    ev.CheckpointsTold,
)
"""What says nothing to a later generation. A joiner or founder names the generation of its assignment instead."""


class Leader:
    """`over` is set when the job has stopped or another coordinator leads. `inventories`: what each host told last of
    itself; it is not kept for a successor, which all hosts will tell it again. `past`: a run that is not to go on."""

    def __init__(
        self,
        term: int,
        *,
        state_store: StateStore,
        clock: Clock,
        journals: Sequence[Journal],
        say: Callable[[str], None] = lambda _: None,
        past: Past = NOTHING_PAST,
        accounts: Callable[[Goodput], None] = lambda _: None,
    ) -> None:
        self.term, self.lines, self._say = term, HostConnections(term), say
        self.historian = Historian(clock)
        self._state_store, self._clock, self._journals = state_store, clock, (*journals, self.historian)
        self._identity = Identity(past, clock, say)
        self._former: dict[MemberId, Rank] = {}
        self._paces, self._accounts = Paces(), accounts
        self.coordinator: Coordinator | None = None
        self.inventories: dict[HostId, HostInventory] = {}
        self._protocols: dict[HostId, int] = {}  # of every host that was welcomed
        self.over = asyncio.Event()
        self.why_over = ""
        self.all_told = True  # unless a former leader went before every host had heard of the end
        self._deposed = False
        self._ready = False
        self._timer: asyncio.TimerHandle | None = None
        self.lines.when_stopped = lambda stop: self._end(sentence(stop.reason))

    # -- beginning and end --------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Look what the last leader left, if there was one. Raises `LedgerError` if that cannot be read."""
        known = await self._identity.look(self._state_store)
        self._ready = True
        if known is not None:
            self.historian.history = known.history
            if known.facts.ending.stopped is not None:
                self._take_over(known)

    def _take_over(self, known: persisted.PersistedJob) -> None:
        """Go on where the last leader stopped."""
        self.all_told = known.all_told or known.facts.ending.stopped is None
        machine, commands = take_over(known.policy, known.facts, self._clock.now())
        for member in known.facts.roster.members.values():
            self.lines.lives_on(member.id, member.host)
        self._former = {
            member.id: member.rank for member in known.facts.roster.members.values() if member.rank is not None
        }
        coordinator = self._make_coordinator(machine)
        coordinator.goodput_clock.account = known.history.goodput
        coordinator.expect_bequests_until(self._clock.now() + known.policy.takeover_patience)
        coordinator.begin_with(commands, active(known.facts))
        self._set_timer()

    def _make_coordinator(self, machine: JobMachine) -> Coordinator:
        self.coordinator = Coordinator(
            machine,
            effects=self.lines,
            clock=self._clock,
            journals=self._journals,
            generations=persisted.PersistedGenerations(
                self._state_store, lambda facts: self._persisted(machine.policy, facts)
            ),
            say=self._say,
            accounts=self._accounts,
        )
        self.coordinator.when_failed(lambda error: self.step_down(str(error)))
        return self.coordinator

    def _persisted(self, policy: Policy, facts: State, *, all_told: bool = False) -> persisted.PersistedJob:
        run, key, history = self._identity.run, self._identity.key, self.historian.history
        if self.coordinator is not None:
            history = msgspec.structs.replace(history, goodput=self.coordinator.goodput)
        return persisted.PersistedJob(policy=policy, facts=facts, all_told=all_told, run=run, key=key, history=history)

    def _end(self, why: str) -> None:
        self.why_over = self.why_over or why
        self.over.set()
        if self._timer is not None:
            self._timer.cancel()

    def leading(self) -> bool:
        """Asked before anything is taken from a host or given to one."""
        if not self._deposed and not self._state_store.leads():
            self.step_down(f"term {self.term} is over")
        return not self._deposed

    def step_down(self, why: str) -> None:
        """Another coordinator leads: decide nothing any more."""
        if self.coordinator is not None:
            self.coordinator.fail(Deposed(why))
        self._deposed = True
        self._end(why)
        self.lines.close_all()

    @property
    def run(self) -> str:
        """Which run this is; empty until the first host is there."""
        return self._identity.run

    @property
    def outcome(self) -> StopJob | None:
        """How the job ended, if it did so while this one led."""
        return self.lines.stopped

    async def record_farewell(self) -> None:
        """Every host knows of the end: the next leader need not wait for any."""
        if self.coordinator is not None:
            machine = self.coordinator.machine
            facts = facts_of(machine, self._clock.now())
            await self._state_store.record(persisted.encode(self._persisted(machine.policy, facts, all_told=True)))

    # -- hosts --------------------------------------------------------------------------------------------------------

    def welcome(self, attend: wire.Attend, peer: str = "") -> HostConnection:
        """A host wants to take part. Raises `WireError` if it may not. `peer`: its address, for people."""
        if attend.term > self.term:  # the state store knows which coordinator leads, not a host
            raise WireError(f"host {attend.host} has obeyed term {attend.term}, ours is {self.term}", kind="later term")
        if not self._ready:
            raise WireError("this coordinator does not know yet what its predecessor left", kind="standby")
        policy = self._policy_of(attend)
        found = self._identity.check(attend, over=self.outcome is not None)
        if found is not None:
            self._take_over(found)
        origin.check_greeting(attend, policy)
        coordinator = self.coordinator or self._begin_run(policy)
        origin.check_settings(attend.host, policy, coordinator.machine.policy)
        versions.check_between(attend.host, attend.protocol, self._others(HostId(attend.host), coordinator.machine))
        line = self.lines.open(HostId(attend.host), attend.agent, peer)
        self._protocols[line.host] = attend.protocol
        line.put(wire.Welcome.now(self.term, attend.host, policy.world_size, self.run))
        if self.outcome is not None:
            line.put(self.lines.farewell(self.outcome))
        return line

    def _others(self, host: HostId, machine: JobMachine) -> dict[str, int]:
        """The protocols of the other hosts that take part, even if they are silent for a moment."""
        known = machine.hosts.by_id
        return {
            other: protocol
            for other, protocol in self._protocols.items()
            if other != host and (other in self.lines.lines or (other in known and known[other].present))
        }

    def _begin_run(self, policy: Policy) -> Coordinator:
        self._identity.begin()
        self.historian.history = History()
        return self._make_coordinator(JobMachine(policy))

    def _policy_of(self, attend: wire.Attend) -> Policy:
        try:
            policy = msgspec.convert(attend.settings, Policy)
        except msgspec.ValidationError as error:
            raise WireError(f"the settings of host {attend.host} cannot be read: {error}", kind="settings") from None
        if not 0 < policy.hosts <= policy.world_size or policy.world_size % policy.hosts:
            raise WireError(f"{policy.world_size} ranks on {policy.hosts} hosts cannot be", kind="settings")
        return policy

    def attended(self, attend: wire.Attend) -> None:
        """It is connected: what lives there, and that it is there."""
        assert self.coordinator is not None
        machine, host, now = self.coordinator.machine, HostId(attend.host), self._clock.now()
        members = tuple(MemberId(member) for member in attend.members)
        for member in members:
            origin.check_home(self.lines, host, member)
            self.lines.lives_on(member, host)
        for end in attend.ends:
            event = wire.to_event(end, now)
            origin.check_event(self.lines, host, event)
            self._tell(event)
        self.inventories[host] = attend.inventory or HostInventory()
        known = machine.hosts.by_id.get(host)
        if known is not None:
            self._tell(ev.HostHeard(at=now, host=host, members=members, store=attend.store))
        else:
            for member in members:
                stranger = DismissStranger(host=host, member=member, reason=because(Code.UNKNOWN_MEMBER))
                self.lines.carry_out(stranger)
        if known is None or not known.present:
            joined = ev.HostJoined(
                at=now,
                host=host,
                ranks=attend.ranks,
                spares=attend.spares,
                place=attend.place,
                store=attend.store,
                devices=self.inventories[host].numbered_devices,
            )
            self._tell(joined)

    def gone(self, line: HostConnection, why: str) -> None:
        self._paces.forget(line.host)
        if self.lines.gone(line) and self.coordinator is not None:
            self._tell(ev.HostSilent(at=self._clock.now(), host=line.host, why=why, left=line.said_farewell))

    def heard(self, line: HostConnection, message: wire.FromHost | wire.Unknown) -> None:
        """Raises `WireError` for what this host may not say."""
        coordinator = self.coordinator
        if coordinator is None or self.over.is_set():
            return
        match message:
            case wire.Unknown():
                self.lines.dropped["unknown message"] += 1
            case wire.Happened():
                self._happened(coordinator, line, message)
            case Measured():
                coordinator.measured(message)
            case wire.Advanced(smallest=smallest, largest=largest):
                coordinator.steps.told(line.host, smallest, largest)
            case wire.CertificateEnds(at=at):
                line.certificate_ends = at
            case wire.Bequeathed():
                self._inherited(coordinator, line, message)
            case wire.Attend():
                raise WireError("a second greeting on one line", kind="replayed")

    def _happened(self, coordinator: Coordinator, line: HostConnection, told: wire.Happened) -> None:
        machine, event = coordinator.machine, wire.to_event(told, self._clock.now())
        origin.check_event(self.lines, line.host, event)
        if isinstance(event, _OF_ONE_GENERATION) and event.generation < machine.generation:
            self.lines.dropped["older generation"] += 1
            return
        if getattr(event, "generation", 0) > machine.generation:
            self.lines.dropped["later generation"] += 1  # there is no such thing
            return
        if isinstance(event, ev.PaceLearnt):
            if not machine.roster.slots.get(line.host):
                self.lines.dropped["pace of no rank"] += 1
                return
            event = msgspec.structs.replace(event, pace=self._paces.learnt(line.host, event.pace))
        member: MemberId | None = getattr(event, "member", None)
        if told.ago is not None and (member is None or member in machine.roster.members):
            coordinator.lost_since(member, self._clock.now() - told.ago)
        self._tell(event)

    def _inherited(self, coordinator: Coordinator, line: HostConnection, left: wire.Bequeathed) -> None:
        machine = coordinator.machine
        sealed = left.rank is not None and origin.is_sealed(self._identity.key, left)
        if not sealed and not origin.owns(self.lines, machine, self._former, line.host, left):
            self.lines.dropped["bequest of another"] += 1
            return
        if left.rank is None:
            coordinator.inherited(MemberId(left.member), left.content)
            return
        coordinator.inherited_of(Rank(left.rank), Generation(left.world), left.content)
        if not left.again:
            copy = msgspec.structs.replace(left, seal=origin.seal(self._identity.key, left))
            self.lines.keep_elsewhere(line.host, copy)

    # -- requests, time -----------------------------------------------------------------------------------------------

    def request(self, request: Request) -> None:
        """What a caller that is no host asks for. The machine decides whether it is done."""
        self._tell(request)

    def _tell(self, event: ev.Event) -> None:
        if self.coordinator is None or not self.leading() or self.over.is_set():
            return
        shortest = _AFTER_A_FAILURE
        try:
            self.coordinator.handle(event)
            shortest = _SHORTEST_WAIT
        finally:
            self._set_timer(shortest)  # whatever happened: nothing else watches the deadlines

    def _set_timer(self, shortest: float = _SHORTEST_WAIT) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = None if self.coordinator is None else self.coordinator.next_deadline()
        if deadline is not None and not self.over.is_set():
            wait = max(shortest, deadline - self._clock.now())
            self._timer = asyncio.get_running_loop().call_later(wait, self._tick)

    def _tick(self) -> None:
        self._tell(ev.Tick(at=self._clock.now()))
