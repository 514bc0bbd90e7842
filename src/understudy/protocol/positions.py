"""What a member says about itself after its generation was abandoned."""

from dataclasses import dataclass

from understudy.foundation.ids import Rank, StepNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a member stands.

    `holds`: the number of committed steps in its state (it would run step `holds` next), or None when its state is
    empty or torn (a joiner, or a receiver whose transfer was interrupted).
    `arrived`: it stands at the fence of step `holds` with final gradients, and needs no other rank to apply them.
    `arrived_asynchronously`: it stands there too, but its device computed later than the host, and only a rank that has
    passed that fence proves its gradients final (`commit`). `arrived` is false then, so that a coordinator which does
    not know this field decides for a retry.
    `kept`: the state of which it has a copy because all twins agreed on it (`replica_check`).
    `saved`: states that it can bring back by itself, from memory that outlives the process that saved them.
    `keeps`: copies of the states of other ranks that are in memory of its host, and that it can give.
    `durable`: states that it can load from checkpoints on disk; it is asked for them only if nothing else is left.
    `tail`: collectives that it has completed between the step that it committed last and the next one (an evaluation).
    `in_tail`: its script goes on with the next of them: it waits there, or comes to it without another step.
    `has_tails`: its script has such collectives after some of its steps, or sections.
    `established`: its engines have settled (first step behind it), so that a joiner can be made equal to it.
    """

    holds: StepNumber | None
    arrived: bool = False
    arrived_asynchronously: bool = False
    established: bool = True
    kept: StepNumber | None = None
    saved: tuple[StepNumber, ...] = ()
    durable: tuple[StepNumber, ...] = ()
    keeps: tuple[tuple[Rank, StepNumber], ...] = ()
    tail: int = 0
    in_tail: bool = False
    has_tails: bool = False

    @property
    def at_fence(self) -> bool:
        """It has all that it needs to apply the step, if the step is committed."""
        return self.arrived or self.arrived_asynchronously

    def __str__(self) -> str:
        if not self.established:
            return "still in its first step"
        if self.holds is None:
            return "without state"
        return f"at the fence of step {self.holds}" if self.at_fence else f"before the fence of step {self.holds}"
