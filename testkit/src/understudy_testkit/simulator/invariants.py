"""What must hold after every event, whatever dies and whatever is lost.

1. One live member per rank and generation, and it is the one that was recorded.
2. No committed step is lost, applied twice or skipped: a state is always exactly the steps 0..n-1.
3. All members that resume in a generation resume at one step, with that state.
4. An old generation never acts: no member applies a step for a generation for which a newer verdict is out.
5. A generation is recorded before any command carries it.
6. Every decision has a reason, and its code is known.
7. The job ends: with all ranks holding all steps, or with a stop whose reason is true.
8. No member is ended for being slow, except by the rules of `protocol.liveness`; and never the last holder of a state.
9. No host holds more ranks than it has places (checked by `cluster`).
10. What an aborted collective leaves behind, on its own device or on another rank's, is never part of a state.
11. No process is put on a device that was lost, and no two ranks have the same one (checked by `device_losses`).

Checks are made where something changes, so that they cost the same however many ranks there are. Knows the world's
ground truth (what each simulated member really holds), which the protocol never sees.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from understudy.errors import UnderstudyError
from understudy.foundation.ids import Generation, MemberId, Rank
from understudy.protocol.commands import (
    AbandonGeneration,
    AssignRank,
    Command,
    DecisionKind,
    KillMember,
    Outcome,
    RecordDecision,
    RecordGeneration,
    ReleaseMembers,
    ResumeAt,
    StopJob,
)
from understudy.protocol.reasons import Reason
from understudy.protocol.rungs import Rung
from understudy.protocol.sentences import TEXTS
from understudy_testkit.simulator.member import SimulatedMember
from understudy_testkit.simulator.script import Script, State


class Violation(UnderstudyError):
    """An invariant does not hold. The text names it; the world adds the story that led to it."""


@dataclass(slots=True)
class Invariants:
    """`committed`: the number of steps of which some rank has recorded the commit since the world was founded."""

    script: Script
    members: dict[MemberId, SimulatedMember]
    committed: int = 0
    recorded: Generation = Generation(0)
    holders: dict[Rank, MemberId] = field(default_factory=dict)
    actors: dict[Rank, tuple[Generation, MemberId]] = field(default_factory=dict)  # which member acts as which rank
    verdict: tuple[Generation, int] = (Generation(0), 0)
    ended: dict[Rank, State | None] = field(default_factory=dict)
    absent: tuple[Rank, ...] = ()  # the newest verdict's
    by_rank: dict[Rank, int] = field(default_factory=dict)  # steps that each rank has recorded as committed
    ever_committed: dict[Rank, int] = field(default_factory=dict)  # the same, whatever was gone back to later

    def copy(self, members: dict[MemberId, SimulatedMember]) -> "Invariants":
        return Invariants(
            self.script,
            members,
            self.committed,
            self.recorded,
            self.holders,
            dict(self.actors),
            self.verdict,
            dict(self.ended),
            self.absent,
            dict(self.by_rank),
            dict(self.ever_committed),
        )

    def actor(self, rank: Rank) -> SimulatedMember | None:
        entry = self.actors.get(rank)
        return None if entry is None else self.members.get(entry[1])

    # -- what the protocol asks for -----------------------------------------------------------------------------------

    def check_commands(self, commands: tuple[Command, ...], heard_of_commit: bool) -> None:
        for command in commands:
            reason = getattr(command, "reason", None)
            if isinstance(reason, Reason) and reason.code not in TEXTS:
                raise Violation(f"6: a reason without a sentence: {command!r}")
            match command:
                case RecordGeneration():
                    self._on_recorded(command)
                case AssignRank() | AbandonGeneration() | ResumeAt() | ReleaseMembers():
                    if command.generation > self.recorded:
                        raise Violation(f"5: generation {command.generation} is used before it is recorded")
                    if isinstance(command, ResumeAt):
                        self._on_verdict(command)
                case RecordDecision(kind=DecisionKind.START_OVER):
                    self._on_start_over(heard_of_commit)
                case StopJob(outcome=Outcome.SUCCEEDED):
                    self._on_success()
                case KillMember():
                    pass

    def _on_recorded(self, command: RecordGeneration) -> None:
        if command.generation < self.recorded:
            raise Violation(f"5: generation {command.generation} is recorded after generation {self.recorded}")
        self.recorded = command.generation
        self.holders = dict(command.holders)

    def _on_verdict(self, command: ResumeAt) -> None:
        generation, step = self.verdict
        if command.generation < generation:
            return  # of a coordinator that was deposed: all members have heard of the newer generation
        if generation == command.generation and step != command.step:
            raise Violation(f"3: generation {generation} was to resume at step {step} and now at {command.step}")
        if (command.rewind or command.rung in (Rung.PEER_MEMORY, Rung.CHECKPOINT)) and generation != command.generation:
            self._go_back(command)
        elif generation != command.generation and self._would_lose(command.step):
            raise Violation(f"2: the verdict is step {command.step}, but a later step is already committed")
        self.verdict, self.absent = (command.generation, command.step), command.absent

    def _go_back(self, command: ResumeAt) -> None:
        """What came later is void, and is done again; from peer memory, fewer steps than lie between two copies."""
        everywhere = min((self.by_rank.get(Rank(r), 0) for r in range(self.script.world_size)), default=0)
        too_far = everywhere - command.step >= max(1, self.script.peer_snapshot_every)
        bad = any(member.spoilt for member in self.members.values())  # what it held was not worth saving
        if command.rung is Rung.PEER_MEMORY and too_far and not command.distrust and not bad:
            raise Violation(f"2: {everywhere} steps are committed everywhere, and only {command.step} would be left")
        self.committed = min(self.committed, command.step)
        self.by_rank = {rank: min(steps, command.step) for rank, steps in self.by_rank.items()}

    def _would_lose(self, step: int) -> bool:
        """With a fence, whatever any rank (even a dead one) has committed must stay. Without one, or on devices, a step
        that only dead ranks had applied is run again and gives the same; what a survivor has applied must stay."""
        if self.script.fenced and not self.script.devices:
            return step < self.committed
        return any(member.holds is not None and member.holds > step for member in self._living())

    def _on_start_over(self, heard_of_commit: bool) -> None:
        """Only if all members that committed the first step die before the machine heard of it may it be done again."""
        survivor = any(m.established and m.state is not None and not m.hung for m in self._living())
        if self.committed and (survivor or heard_of_commit):
            raise Violation(f"2: the world starts over although {self.committed} steps are committed")
        self.committed = 0
        self.by_rank.clear()
        self.ended.clear()
        self.absent = ()

    def _living(self) -> Iterator[SimulatedMember]:
        return (member for member in self.members.values() if member.alive and not member.forsaken)

    def _on_success(self) -> None:
        whole = tuple(range(self.script.steps))
        present = [rank for rank in range(self.script.world_size) if rank not in self.absent]
        wrong = [rank for rank in present if self.ended.get(Rank(rank)) != whole]
        if wrong:
            raise Violation(f"7: the job succeeded, but ranks {wrong} do not hold {self.script.steps} steps")

    # -- what members do ----------------------------------------------------------------------------------------------

    def on_acting(self, member: SimulatedMember) -> None:
        assert member.rank is not None
        other = self.actor(member.rank)
        if (
            other is not None
            and other.id != member.id
            and other.alive
            and other.acting == member.acting
            and not other.leaves
        ):
            raise Violation(f"1: {member.id} and {other.id} act as rank {member.rank} in generation {member.acting}")
        if member.acting == self.recorded and self.holders.get(member.rank) != member.id:
            raise Violation(f"1: {member.id} acts as rank {member.rank}, which was given to another member")
        self.actors[member.rank] = (member.acting, member.id)

    def on_applied(self, member: SimulatedMember) -> None:
        self._check_state(member)
        if member.acting < self.verdict[0] and not member.forsaken:
            raise Violation(f"4: {member.id} applies a step for the old generation {member.acting}")

    def on_committed(self, member: SimulatedMember, steps: int | None = None) -> None:
        """`steps`: how many are committed; None for all that it holds."""
        committed = member.holds if steps is None else steps
        assert committed is not None
        if committed > (member.certainly_holds() or 0):
            raise Violation(f"2: {member.id} records step {committed - 1}, which its device may not apply")
        if not member.forsaken:
            self.committed = max(self.committed, committed)
            if member.rank is not None:
                self.by_rank[member.rank] = max(self.by_rank.get(member.rank, 0), committed)
                ever = self.ever_committed.get(member.rank, 0)
                self.ever_committed[member.rank] = max(ever, committed)

    def on_resumed(self, member: SimulatedMember) -> None:
        self._check_state(member)
        assert member.state is not None
        if self.verdict[0] == member.acting and len(member.state) != self.verdict[1]:
            raise Violation(f"3: {member.id} resumes at {len(member.state)}, the verdict is step {self.verdict[1]}")

    def on_exit(self, member: SimulatedMember) -> None:
        assert member.rank is not None
        self._check_state(member)
        self.ended[member.rank] = member.state

    def _check_state(self, member: SimulatedMember) -> None:
        if member.state is not None and any(step < 0 for step in member.state):
            raise Violation(f"10: {member.id} (rank {member.rank}) has applied what an aborted collective left behind")
        if member.state is None or member.state != tuple(range(len(member.state))):
            raise Violation(f"2: the state of {member.id} (rank {member.rank}) is {member.state}: not every step once")
