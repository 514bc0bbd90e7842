"""Every interleaving of a small world: all orders of messages, moves and kills, with equal states visited once.

Knows the same members, machine and invariants as the simulation, and nothing of time. From every state it tries every
next thing that can happen: a member's move, the delivery of the first message of a link, the start of a process, and
(while faults are left) the death of any living member, spares and joiners included. Faults are kills; hangs, lost
messages and deadlines belong to the simulation.

Reductions, each of which leaves out only orders that cannot be told apart:

- Links keep their order and lose nothing; a tick comes only when nothing else can happen.
- The beginning (processes start, connect, get their ranks, the spare parks) is played in one fixed order.
- Moves between which nothing outside the member can happen are joined: applying with passing the fence (a member that
dies while applying leaves nothing behind that differs), the moment between steps with the computation that follows,
leaving the computation with hearing that the generation is abandoned (its report may still travel for any time),
hearing its rank with being told it.
- A process starts, says hello, is heard and parks in one move.
- A death is noticed at once, and with it everything that the dead member had on its way is forgotten. Until it is
  noticed, a dead member cannot be told from one that does not move; and what it said before may be heard before.
- The pool is refilled only right before a death: until then it cannot be told whether it was.
- Before the first fault ranks are alike, so states that differ only in the names of ranks count as one.
- The abort of a device's collectives happens together with the hearing that leads to it, and the draining with the
report: nothing that starts in between sees anything else. That a device fails by itself is a fault, while it runs a
collective; that its process dies of it, at any time later, is none.
- When no fault is left, no further generation can open. Then only leaving the old generation is a race; everything
  else gives the same in any order and is played in one.
- Numbers that only count (tries, deaths) are not part of a state; their limits are set out of reach.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from understudy.foundation.ids import MemberId, Rank
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import AssignRank, Command
from understudy.protocol.job import JobMachine
from understudy.protocol.policy import Policy
from understudy.protocol.requests import MoveRanks
from understudy.protocol.stages import Stage
from understudy_testkit.simulator.device import DeviceMember
from understudy_testkit.simulator.invariants import Violation
from understudy_testkit.simulator.member import SimulatedMember
from understudy_testkit.simulator.phases import MemberPhase
from understudy_testkit.simulator.reasons import kind_of_stop, why_stop_is_wrong
from understudy_testkit.simulator.script import Script
from understudy_testkit.simulator.snapshot import MACHINE, snapshot_key
from understudy_testkit.simulator.world import World

Message = TypeVar("Message")

Choice = tuple[str, MemberId]
"""What happens next, and to which member."""

JOINED = frozenset(
    {MemberPhase.APPLYING, MemberPhase.BETWEEN, MemberPhase.APPLYING_VERDICT, MemberPhase.LEAVING, MemberPhase.DRAINING}
)
RESTING = frozenset({MemberPhase.UNWOUND, MemberPhase.ENDED, MemberPhase.FINISHED})
MOST_TICKS = 3
KILLED = Cause(kind=CauseKind.SIGNAL, detail="killed by signal 9", exit_code=-9)


class Branch(World):
    """One state of the small world, which can be copied before something happens to it."""

    def __init__(self, script: Script, machine: JobMachine, faults: int, moves: int = 0) -> None:
        super().__init__(script, machine, story_length=0)
        self.faults, self.moves = faults, moves
        self.untouched = True  # no fault yet
        self.owns_machine = True
        self.ticks: tuple[int, int] = (0, 0)  # the generation, and how often it was helped on by a tick
        self.keys: dict[MemberId, int] = {}  # of the machine and of members, until they change
        self.upward: dict[MemberId, tuple[ev.Event, ...]] = {}
        self.downward: dict[MemberId, tuple[Command, ...]] = {}

    def copy(self) -> "Branch":
        """Machine and members are shared until one of the two changes them (`handle`, `own`)."""
        twin = Branch(self.script, self.machine, self.faults, self.moves)
        twin.owns_machine = False
        twin.members = dict(self.members)
        twin.meetings, twin.peer_memory = dict(self.meetings), dict(self.peer_memory)
        twin.absent_in = dict(self.absent_in)
        twin.invariants = self.invariants.copy(twin.members)
        twin.outcome, twin.untouched = self.outcome, self.untouched
        twin.upward, twin.downward = dict(self.upward), dict(self.downward)
        twin.keys, twin.ticks = dict(self.keys), self.ticks
        return twin

    def own(self, member: MemberId) -> SimulatedMember:
        mine = self.members[member] = self.members[member].copy()
        self.keys.pop(member, None)
        return mine

    def handle(self, event: ev.Event) -> None:
        if not self.owns_machine:
            self.machine = self.machine.copy()
            self.owns_machine = True
        self.keys.pop(MACHINE, None)
        super().handle(event)

    # -- how things travel: links that keep their order ---------------------------------------------------------------

    @property
    def now(self) -> float:
        return 0.0

    def send(self, member: SimulatedMember, event: ev.Event) -> None:
        self.upward[member.id] = (*self.upward.get(member.id, ()), event)

    def transmit(self, member: SimulatedMember, command: Command) -> None:
        if isinstance(command, AssignRank):
            self.own(member.id).hear(command, self)
            return
        self.downward[member.id] = (*self.downward.get(member.id, ()), command)

    def on_started(self, member: SimulatedMember) -> None:
        pass

    def on_gone(self, member: SimulatedMember, cause: Cause) -> None:
        for forgotten in (self.upward, self.downward, self.keys, self.members):
            forgotten.pop(member.id, None)
        self.handle(ev.MemberLost(at=0.0, member=member.id, cause=cause))

    # -- what can happen ----------------------------------------------------------------------------------------------

    def choices(self) -> tuple[Choice, ...]:
        """Everything that can happen next, less what the reductions leave out."""
        if self.outcome is not None:
            return ()
        heard = [("coordinator hears", id_) for id_ in self.upward]
        moves = [
            ("move", id_)
            for id_, member in self.members.items()
            if member.phase not in RESTING and member.can_move(self)
        ]
        devices = self._devices()
        moves += [("device runs", id_) for id_, member in devices.items() if member.device_can_run(self)]
        hears = [("member hears", id_) for id_ in self.downward]
        doomed = [id_ for id_, member in devices.items() if member.failing]
        if not self.faults and not doomed and not self.moves and not self.machine.roster.understudies:
            if heard:
                return (heard[0],)
            if self.machine.stage is not Stage.STOPPING and (moves or hears):
                return ((moves or hears)[0],)
        choices: list[Choice] = [*heard, *moves, *hears]
        ways = ["kill"] if self.machine.pool.state.refill_at is None else ["kill", "refill, then kill"]
        choices += [(way, id_) for id_ in (self.members if self.faults else doomed) for way in ways]
        if self.faults:
            fit = (id_ for id_, member in devices.items() if member.can_fail)
            choices += [("device fails", id_) for id_ in fit]
        if self.moves and self.machine.refusal(self._request()) is None:
            choices.append(("ask for a move", MACHINE))
        if not (heard or moves or hears):
            choices.append(("time passes", MACHINE))
        return tuple(choices)

    def _devices(self) -> dict[MemberId, DeviceMember]:
        if not self.script.devices:
            return {}
        return {id_: member for id_, member in self.members.items() if isinstance(member, DeviceMember)}

    def _own_device(self, id_: MemberId) -> DeviceMember:
        member = self.own(id_)
        assert isinstance(member, DeviceMember)
        return member

    def happen(self, choice: Choice) -> None:
        what, id_ = choice
        match what:
            case "move":
                self._move(self.own(id_))
            case "coordinator hears":
                self.handle(_first(self.upward, id_))
            case "member hears":
                member = self.own(id_)
                member.hear(_first(self.downward, id_), self)
                self._join_moves(member)
            case "device runs":
                self._own_device(id_).run_device(self)
            case "device fails":
                self.faults, self.untouched = self.faults - 1, False
                self._own_device(id_).fail(self)
            case "ask for a move":
                self.moves -= 1
                self.untouched = False
                self.handle(self._request())
            case "time passes":
                self._let_time_pass()
            case "kill":
                self._kill(id_)
            case "refill, then kill":
                self._refill()
                self._kill(id_)
        self._forget_old_meetings()

    def _move(self, member: SimulatedMember) -> None:
        says_hello = member.phase is MemberPhase.STARTING
        member.move(self)
        if says_hello:
            member.move(self)
            while member.id in self.upward:
                self.handle(_first(self.upward, member.id))
            member = self.own(member.id)
        self._join_moves(member)

    def _join_moves(self, member: SimulatedMember) -> None:
        while member.phase in JOINED or (member.phase is MemberPhase.COMPUTING and member.heard > member.acting):
            member.move(self)

    @staticmethod
    def _request() -> MoveRanks:
        return MoveRanks(at=0.0, ranks=(Rank(0),), reason="the explorer asks")

    def _let_time_pass(self) -> None:
        """All members wait: whatever was not answered is said again. That must help soon. An agent would see that a
        member without contact waits, even if the machine had no use for its word when that came."""
        for member in self._devices().values():
            if member.phase is MemberPhase.WITHOUT_CONTACT:
                self.handle(member.contact_lost(self.now))
        generation, count = self.ticks
        count = count + 1 if generation == self.machine.generation else 1
        self.ticks = (self.machine.generation, count)
        deadline = self.machine.next_deadline()
        if deadline is None or count > MOST_TICKS:
            raise Violation(f"7: all members wait for each other in stage {self.machine.stage.value}")
        self.handle(ev.Tick(at=deadline))

    def _kill(self, id_: MemberId) -> None:
        member = self.members[id_]
        if not (isinstance(member, DeviceMember) and member.failing):
            self.faults -= 1
        self.untouched = False
        self.end(self.own(id_), KILLED)

    def _refill(self) -> None:
        assert self.machine.pool.state.refill_at is not None
        before = set(self.members)
        self.handle(ev.Tick(at=self.machine.pool.state.refill_at))
        for id_ in self.members.keys() - before:
            self._move(self.own(id_))

    def _forget_old_meetings(self) -> None:
        """A meeting matters while a member stands at it, or may still come to it."""
        if not self.meetings:
            return
        standing = {member.meeting for member in self.members.values() if member.alive}
        standing.update(*(member.concerned() for member in self._devices().values()))
        current = {member.acting for member in self.members.values() if member.alive and member.heard == member.acting}
        self.meetings = {
            meeting: guests
            for meeting, guests in self.meetings.items()
            if meeting in standing
            or (guests | self.absent_in.get(meeting[0], 0) != self.script.all_ranks and meeting[0] in current)
        }


def _first(links: dict[MemberId, tuple[Message, ...]], id_: MemberId) -> Message:
    first, *rest = links.pop(id_)
    if rest:
        links[id_] = tuple(rest)
    return first


def opening(script: Script, spares: int, faults: int, moves: int = 0) -> Branch:
    """All founding members are in their setup and the spares are parked."""
    policy = Policy(
        world_size=script.world_size,
        spares=spares,
        max_start_overs=1000,
        max_deaths_per_step=1000,
        recovery_attempts=1000,
        spare_failures_in_a_row=1000,
        probation=0,  # no state turns bad here
    )
    branch = Branch(script, JobMachine(policy), faults, moves)
    branch.handle(ev.JobStarted(at=0.0))
    for id_ in list(branch.members):
        branch.happen(("move", id_))
    return branch


@dataclass(slots=True)
class Exploration:
    """What was visited. `endings`: how often each way of ending was reached."""

    states: int = 0
    transitions: int = 0
    endings: dict[str, int] = field(default_factory=dict)


def explore(
    script: Script, *, spares: int = 1, faults: int = 2, moves: int = 0, limit: int | None = None
) -> Exploration:
    """Visit every state, depth first. `moves`: how often rank 0 is asked to move, at any time. Raises `Violation` with
    the choices that lead to a broken invariant."""
    found = Exploration()
    first = opening(script, spares, faults, moves)
    seen: set[int] = {snapshot_key(first)}
    path: list[Choice] = []
    pending: list[tuple[Branch, Iterator[Choice]]] = [(first, iter(first.choices()))]
    while pending:
        branch, choices = pending[-1]
        choice = next(choices, None)
        if choice is None:
            pending.pop()
            if path:
                path.pop()
            continue
        found.transitions += 1
        path.append(choice)
        following = _try(branch, choice, path)
        key = snapshot_key(following)
        if key in seen:
            path.pop()
            continue
        seen.add(key)
        if limit is not None and len(seen) >= limit:
            break
        pending.append((following, _look_ahead(following, path, found)))
    found.states = len(seen)
    return found


def _try(branch: Branch, choice: Choice, path: list[Choice]) -> Branch:
    following = branch.copy()
    try:
        following.happen(choice)
    except Violation as violation:
        raise Violation(f"{violation}\n{_story(branch, path)}") from violation
    return following


def _look_ahead(branch: Branch, path: list[Choice], found: Exploration) -> Iterator[Choice]:
    """The choices of a new state; a state without any must be a rightful end."""
    choices = branch.choices()
    if choices:
        return iter(choices)
    assert branch.outcome is not None
    wrong = why_stop_is_wrong(branch.outcome, branch)
    if wrong is not None:
        raise Violation(f"7: {wrong}\n{_story(branch, path)}")
    kind = kind_of_stop(branch.outcome) or "unknown"
    found.endings[kind] = found.endings.get(kind, 0) + 1
    return iter(())


def _story(branch: Branch, path: list[Choice]) -> str:
    told = "\n".join(f"  {number:3} {what} {id_}" for number, (what, id_) in enumerate(path))
    return f"{branch.script}; the choices that lead here:\n{told}"
