"""What the timed simulation and the explorer share: members, meetings, the machine, and the carrying out of commands.

Knows which members exist and which meetings are complete. Does not know when things happen: subclasses say how a
message travels (`transmit`, `send`) and how a loss is noticed (`on_gone`).
"""

from abc import ABC, abstractmethod
from collections import Counter, deque

from understudy.foundation.ids import HostId, MemberId, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import (
    AbandonGeneration,
    AskCheckpoints,
    AskStep,
    AssignRank,
    Command,
    KeepAgreed,
    KillMember,
    ReleaseMembers,
    ResumeAt,
    StartMember,
    StopJob,
    WatchClosely,
)
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.job import JobMachine
from understudy.protocol.sentences import sentence
from understudy_testkit.simulator.device import DeviceMember
from understudy_testkit.simulator.device_side import DeviceSideMember
from understudy_testkit.simulator.invariants import Invariants, Violation
from understudy_testkit.simulator.member import SimulatedMember
from understudy_testkit.simulator.phases import Meeting, MemberPhase, garbage_of
from understudy_testkit.simulator.script import Script, State


class World(ABC):
    """Implements `places.Surroundings`. `story`: the last events and commands, for the text of a violation."""

    def __init__(self, script: Script, machine: JobMachine, story_length: int = 120) -> None:
        self.script = script
        self.machine = machine
        self.members: dict[MemberId, SimulatedMember] = {}
        self.meetings: dict[Meeting, int] = {}
        self.invariants = Invariants(script, self.members)
        self.absent_in: dict[int, int] = {}  # the ranks without which a generation was formed, as a bit mask
        self.peer_memory: dict[tuple[HostId, Rank], tuple[State, ...]] = {}  # two copies of each rank at most
        self.story: deque[object] = deque(maxlen=story_length)
        self.stale: Counter[str] = Counter()
        self.outcome: StopJob | None = None
        self.state_was_damaged = False
        self.lost_devices: set[int] = set()  # of which the machine was told

    # -- for subclasses ---------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    def send(self, member: SimulatedMember, event: ev.Event) -> None:
        """A member says something to the coordinator."""

    @abstractmethod
    def transmit(self, member: SimulatedMember, command: Command) -> None:
        """The coordinator says something to a member."""

    @abstractmethod
    def on_started(self, member: SimulatedMember) -> None: ...

    @abstractmethod
    def on_gone(self, member: SimulatedMember, cause: Cause) -> None:
        """The process has ended; its loss will be noticed."""

    def on_watch_closely(self) -> None:
        """Agents are to tell what they see. Where nothing takes time there is nothing to see."""
        return

    def own(self, member: MemberId) -> SimulatedMember:
        """The member, to be changed."""
        return self.members[member]

    # -- the machine --------------------------------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Give the machine one event, check what it asks for, and carry it out."""
        if self.outcome is not None:
            return
        self.story.append(event)
        heard_of_commit = self.machine.round.state.established
        try:
            commands = self.machine.handle(event)
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"the machine failed on {event!r}: {error!r}") from error
        self.obey(commands, heard_of_commit)

    def obey(self, commands: tuple[Command, ...], heard_of_commit: bool) -> None:
        self.story.extend(commands)
        self.invariants.check_commands(commands, heard_of_commit)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case StartMember():
                member = self._kind()(command.member, self.script)
                self.members[member.id] = member
                self.on_started(member)
            case AssignRank():
                self._tell((command.member,), command)
            case ResumeAt():
                self.absent_in[command.generation] = sum(1 << rank for rank in command.absent)
                self._tell((*command.members, *command.leavers), command)
            case AbandonGeneration() | AskStep() | AskCheckpoints() | KeepAgreed() | ReleaseMembers():
                self._tell(command.members, command)
            case WatchClosely():
                self.on_watch_closely()
            case KillMember():
                self.kill_for(self.own(command.member), command)
            case StopJob():
                self.outcome = command

    def _kind(self) -> type[SimulatedMember]:
        if self.script.ahead:
            return DeviceSideMember
        return DeviceMember if self.script.devices else SimulatedMember

    def _tell(self, ids: tuple[MemberId, ...], command: Command) -> None:
        for id_ in ids:
            member = self.members.get(id_)
            if member is not None and member.alive:
                self.transmit(member, command)

    def kill_for(self, member: SimulatedMember, command: KillMember) -> None:
        kind = CauseKind.HANG if command.hang else CauseKind.DISMISSED
        self.end(member, Cause(kind=kind, detail=sentence(command.reason), exit_code=-9))

    def end(self, member: SimulatedMember, cause: Cause) -> None:
        """A process is no more. What it sent may still arrive."""
        if member.alive:
            member.enter(MemberPhase.ENDED)
            self.on_gone(member, cause)

    # -- what members need --------------------------------------------------------------------------------------------

    def arrive(self, member: SimulatedMember, meeting: Meeting) -> None:
        assert member.rank is not None
        self.meetings[meeting] = self.meetings.get(meeting, 0) | 1 << member.rank

    def is_complete(self, meeting: Meeting) -> bool:
        absent = self.absent_in.get(meeting[0], 0)
        return self.meetings.get(meeting, 0) | absent == self.script.all_ranks

    def contaminate(self, member: SimulatedMember, collective: Meeting) -> None:
        """A member aborts a collective that its device has not completed."""
        assert member.rank is not None
        garbage = garbage_of(collective)
        self.meetings[garbage] = self.meetings.get(garbage, 0) | 1 << member.rank

    def is_contaminated(self, collective: Meeting) -> bool:
        return garbage_of(collective) in self.meetings

    def donor(self, receiver: SimulatedMember) -> SimulatedMember | None:
        """A member to take the state from, once everything that the receiver needs can be had from its donors."""
        if receiver.from_copy:
            return self._giver(receiver.donors[0], None, leaver=False)
        wanted = set(receiver.holdings)
        named = {piece for rank in receiver.donors for piece in self.script.holdings(rank)}
        if not wanted <= named:
            raise Violation(
                f"2: rank {receiver.rank} is to receive from {receiver.donors}, which do not hold all of it"
            )
        ready = [
            member
            for rank in receiver.donors
            if (member := self._giver(rank, receiver.target, leaver=rank == receiver.rank)) is not None
        ]
        return ready[0] if wanted <= {piece for member in ready for piece in member.holdings} else None

    def _giver(self, rank: Rank, step: int | None, leaver: bool) -> SimulatedMember | None:
        """`step`: the state that it must hold; None if it gives a copy of another rank's."""
        member = self._leaver_of(rank) if leaver else self.invariants.actor(rank)
        able = member is not None and member.alive and not member.hung and step in (None, member.certainly_holds())
        return member if able else None

    def _leaver_of(self, rank: Rank) -> SimulatedMember | None:
        return next((m for m in self.members.values() if m.rank == rank and m.phase is MemberPhase.GIVING), None)

    def on_acting(self, member: SimulatedMember) -> None:
        self.invariants.on_acting(member)

    def on_applied(self, member: SimulatedMember) -> None:
        self.invariants.on_applied(member)

    def on_committed(self, member: SimulatedMember, steps: int | None = None) -> None:
        self.invariants.on_committed(member, steps)

    def on_resumed(self, member: SimulatedMember) -> None:
        self.invariants.on_resumed(member)

    def on_stale(self, member: SimulatedMember, command: Command) -> None:  # noqa: ARG002
        self.stale[type(command).__name__] += 1

    def on_exit(self, member: SimulatedMember) -> None:
        self.invariants.on_exit(member)
        self.on_gone(member, Cause(kind=CauseKind.EXIT, detail="the script ended", exit_code=0))

    # -- durable checkpoints -----------------------------------------------------------------------------------------

    def checkpoints(self) -> tuple[int, ...]:
        """Every so many steps that all ranks have committed."""
        every, ranks = self.script.checkpoint_every, range(self.script.world_size)
        whole = min((self.invariants.ever_committed.get(Rank(rank), 0) for rank in ranks), default=0)
        return tuple(range(every, whole + 1, every)) if every else ()

    # -- peer memory --------------------------------------------------------------------------------------------------

    @property
    def has_other_hosts(self) -> bool:
        return False

    def host_for(self, member: SimulatedMember) -> HostId:  # noqa: ARG002
        return THIS_HOST

    def save(self, member: SimulatedMember, state: State) -> bool:
        """Is it saved wherever it should be?"""
        assert member.rank is not None
        kept = self.peer_memory.get((self.host_for(member), member.rank), ())
        on_probation = len(state) <= member.watches_until
        held = tuple(copy for copy in kept if on_probation and len(copy) == member.held != len(state))
        self.write_copy(self.host_for(member), member.rank, state, held)
        return True

    def write_copy(self, host: HostId, rank: Rank, state: State, held: tuple[State, ...] = ()) -> None:
        others = (copy for copy in self.peer_memory.get((host, rank), ()) if len(copy) != len(state))
        newest = sorted(others, key=len)[-1:]
        self.peer_memory[host, rank] = (*(copy for copy in held if copy not in newest), *newest, state)

    def saved(self, member: SimulatedMember) -> tuple[State, ...]:
        assert member.rank is not None
        return self.peer_memory.get((self.host_for(member), member.rank), ())

    def within_reach(self, rank: Rank) -> set[int]:
        """States of a rank of which a living member could find a copy."""
        return {len(state) for state in self.peer_memory.get((THIS_HOST, rank), ())}

    def keeps(self, member: SimulatedMember) -> tuple[tuple[Rank, StepNumber], ...]:  # noqa: ARG002
        return ()

    def copy_of(self, owner: SimulatedMember, keeper: SimulatedMember) -> State:
        assert owner.rank is not None
        for state in self.peer_memory.get((self.host_for(keeper), owner.rank), ()):
            if len(state) == owner.target:
                return state
        raise Violation(f"2: rank {keeper.rank} was to give the copy of rank {owner.rank}, and has none")

    def reaches_keeper(self, member: SimulatedMember) -> bool:  # noqa: ARG002
        return True

    def forget_after(self, member: SimulatedMember, step: int) -> None:
        assert member.rank is not None
        self.peer_memory[self.host_for(member), member.rank] = tuple(
            copy for copy in self.saved(member) if len(copy) <= step
        )

    def tell_story(self) -> str:
        return "\n".join(f"  {entry}" for entry in self.story)
