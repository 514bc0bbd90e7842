"""The spare pool: when a new process is started, and when it is not, with the reason."""

from dataclasses import dataclass

from understudy.foundation.ids import Generation, Rank
from understudy.protocol.commands import Command, DecisionKind, RecordDecision, StartMember
from understudy.protocol.policy import Policy
from understudy.protocol.roster import Member, Roster


@dataclass(slots=True)
class SparePool:
    """Keeps `policy.spares` processes ready. Started processes are counted, so a crash loop ends by itself."""

    policy: Policy
    roster: Roster
    replacements: int = 0
    failures_in_a_row: int = 0
    complained: bool = False

    def copy(self, roster: Roster) -> "SparePool":
        return SparePool(self.policy, roster, self.replacements, self.failures_in_a_row, self.complained)

    def on_spare_lost(self, was_warm: bool) -> None:
        if not was_warm:
            self.failures_in_a_row += 1

    def on_spare_warm(self) -> None:
        self.failures_in_a_row = 0

    def cannot_start(self) -> str | None:
        """Why no further process may be started on this host."""
        if self.policy.spares == 0:
            return "the job was started with --spares 0"
        if self.failures_in_a_row >= self.policy.spare_failures_in_a_row:
            return f"{self.failures_in_a_row} spares in a row died before they were warm: the host is not healthy"
        if self.replacements >= self.policy.max_replacements:
            return f"all {self.policy.max_replacements} replacements are used up (--max-replacements)"
        return None

    def cannot_fill(self, vacancies: int) -> str | None:
        """Why so many vacant ranks cannot be manned: no spare, and none may be started."""
        if vacancies <= self.roster.spare_count:
            return None
        return self.cannot_start()

    def take(self, rank: Rank) -> tuple[Member, list[Command]]:
        """The best member for a vacant rank: a warm spare, else a starting one, else a new process."""
        member = self.roster.best_spare()
        if member is not None:
            return member, []
        return self.start(rank)

    def start(self, rank: Rank | None, first: bool = False) -> tuple[Member, list[Command]]:
        member = self.roster.new_spare()
        if not first:
            self.replacements += 1
        return member, [StartMember(member=member.id, rank=rank)]

    def refill(self, at: float, generation: Generation, reason: str = "", first: bool = False) -> list[Command]:
        """Bring the pool back to its size, or say once why not."""
        commands: list[Command] = []
        while self.roster.spare_count < self.policy.spares:
            no_way = None if first else self.cannot_start()
            if no_way is not None:
                if not self.complained:
                    self.complained = True
                    commands.append(
                        RecordDecision(at=at, generation=generation, kind=DecisionKind.NO_REFILL, reason=no_way)
                    )
                break
            member, start = self.start(None, first)
            if not first:
                commands.append(
                    RecordDecision(
                        at=at,
                        generation=generation,
                        kind=DecisionKind.REFILL,
                        member=member.id,
                        reason=reason or "the pool is below its size",
                    )
                )
            commands += start
        return commands
