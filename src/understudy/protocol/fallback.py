"""When a swap does not help: which rung is taken instead, and why the higher ones were not.

    swap ─▶ degrade ─▶ peer memory ─▶ restart from memory ─▶ durable checkpoint ─▶ the job stops, with all the reasons

Where a state comes from (a twin, peer memory, a checkpoint) is decided in `planning`, when all ranks have reported.
Here is decided what needs other processes: a rank for which there is no spare, and a world that cannot be formed as it
is; and here is counted how often each rung was taken, for its budget. A rung counts when the world has resumed by it, a
restart when it begins. Planned moves, and absent ranks that come back at a boundary, are no rungs. Called by `job`.
"""

from dataclasses import dataclass, field, replace

from understudy.foundation.ids import Rank
from understudy.protocol.commands import Command, DecisionKind, RecordDecision, ResumeAt
from understudy.protocol.policy import Policy
from understudy.protocol.pool import SparePool
from understudy.protocol.reasons import Code, Reason, because
from understudy.protocol.recovery_kind import Processes
from understudy.protocol.roster import Roster
from understudy.protocol.round import Round
from understudy.protocol.rungs import Rung


@dataclass(slots=True)
class FallbackState:
    """`taken`: how often each rung was. `under_way`: swap and degrade, which are decided before there is a plan, until
    the world has resumed."""

    taken: dict[Rung, int] = field(default_factory=dict)
    under_way: set[Rung] = field(default_factory=set)
    hopeless: set[Rank] = field(default_factory=set)  # absent ranks that meet the same failure again and again

    def count(self, rung: Rung) -> None:
        self.taken[rung] = self.taken.get(rung, 0) + 1

    def resumed(self, plan: ResumeAt, cold: bool) -> None:
        """`cold`: all processes have begun anew. That was counted, and the copies that they found are part of it."""
        if plan.rung is Rung.CHECKPOINT or (not cold and (plan.rung is not Rung.SWAP or Rung.SWAP in self.under_way)):
            self.count(plan.rung)
        if Rung.DEGRADE in self.under_way and plan.absent:
            self.count(Rung.DEGRADE)
        self.under_way.clear()


@dataclass(frozen=True, slots=True)
class NoWay:
    """The world cannot go on without some ranks, and nothing takes over for them. `tried`: why not, by strategy."""

    tried: tuple[Reason, ...]


class Fallback:
    """Which strategies are left, and what follows when one is taken."""

    def __init__(self, policy: Policy, roster: Roster, pool: SparePool, round_: Round, state: FallbackState) -> None:
        self.policy, self.roster, self.pool, self.round, self.state = policy, roster, pool, round_, state

    def refusal(self, rung: Rung) -> Reason | None:
        return self.policy.rungs.refusal(rung, self.state.taken.get(rung, 0))

    def refusals(self) -> dict[Rung, Reason]:
        """The rungs from which no state may come now."""
        if self.round.state.kind.processes is Processes.FRESH:
            wanted = [Rung.CHECKPOINT]
        else:
            swap = [Rung.SWAP] if Rung.SWAP in self.state.under_way else []
            wanted = [*swap, Rung.PEER_MEMORY, Rung.CHECKPOINT]
        return {rung: why for rung in wanted if (why := self.refusal(rung)) is not None}

    # -- no spare ------------------------------------------------------------------------------------------------------

    def go_on_without_the_vacant(self, at: float) -> RecordDecision | NoWay | None:
        """Nothing to do while there is, or may be, a process for every vacant rank. If there is and swaps are used up,
        to degrade comes next; if that cannot be either, the rank is given away, and its state must come from further
        down."""
        vacant = self.round.vacancies()
        if self.round.state.kind.processes is Processes.FRESH or not vacant:
            return None
        unfit = [rank for rank in vacant if rank in self.round.state.unfit]
        if unfit:
            return self._go_on_without_the_unfit(at, unfit)
        no_way = self.pool.cannot_fill(len(vacant), at)
        if no_way is not None:
            return self.go_on_without(at, no_way)
        refused = self.refusal(Rung.SWAP)
        degraded = self.go_on_without(at, refused) if refused is not None else None
        return None if isinstance(degraded, NoWay) else degraded

    def _go_on_without_the_unfit(self, at: float, unfit: list[Rank]) -> RecordDecision | NoWay | None:
        """No replacement fits these ranks, and another one would not either."""
        known = self.round.state.unfit
        degraded = self.go_on_without(
            at, because(Code.NO_REPLACEMENT_FITS, ranks=tuple(unfit), why=known[unfit[0]].why)
        )
        if not isinstance(degraded, NoWay):
            self.state.hopeless |= set(unfit)
            return degraded
        helps = all(known[rank].restart_helps for rank in unfit)
        return None if helps and self.cannot_restart(at) is None else degraded

    def go_on_without(self, at: float, no_swap: Reason) -> RecordDecision | NoWay:
        """No process takes over the vacant ranks. Drop the replicas that they belong to; or say why that cannot be."""
        round_ = self.round.state
        vacant = self.round.vacancies()
        refused = self.cannot_degrade(vacant)
        if refused is not None:
            return NoWay(
                (
                    because(Code.NO_STRATEGY, strategy=Rung.SWAP.value, why=no_swap),
                    because(Code.NO_STRATEGY, strategy=Rung.DEGRADE.value, why=refused),
                )
            )
        dropped = frozenset().union(*(round_.replicas[rank] for rank in vacant))
        round_.absent |= dropped
        self.state.under_way.add(Rung.DEGRADE)
        reason = because(
            Code.DEGRADED,
            why=no_swap,
            left=self.round.present_count,
            world=self.policy.world_size,
            ranks=tuple(sorted(round_.absent)),
        )
        return self.round.decision(at, DecisionKind.DEGRADE, reason)

    def cannot_degrade(self, vacant: list[Rank]) -> Reason | None:
        round_, world = self.round.state, self.policy.world_size
        not_allowed = self.refusal(Rung.DEGRADE)
        if not_allowed is not None:
            return not_allowed
        if not round_.established:
            return because(Code.NO_STEP_YET)
        unknown = [rank for rank in vacant if rank not in round_.replicas]
        if unknown:
            return because(Code.NOT_A_REPLICA, ranks=tuple(unknown))
        dropped = round_.absent.union(*(round_.replicas[rank] for rank in vacant))
        left = [Rank(rank) for rank in range(world) if Rank(rank) not in dropped]
        held = {round_.twin_keys.get(rank) for rank in left}
        if not left or held < set(round_.twin_keys.values()):
            return because(Code.NO_WHOLE_REPLICA)
        return None

    def why_not_degraded(self) -> Reason:
        """For a verdict that takes a lower rung."""
        positions = self.round.state.positions
        empty = [rank for rank, position in sorted(positions.items()) if position.holds is None]
        return self.cannot_degrade(empty) or because(Code.RANKS_FILLED)

    def make_whole_if_possible(self, at: float) -> tuple[Rank, ...]:
        """A generation is opened anyway: if there are spares for the absent ranks by now, they come back with it.
        Returns these."""
        round_ = self.round.state
        if not round_.absent or round_.absent & self.state.hopeless:
            return ()
        empty = sum(rank not in self.roster.holders for rank in round_.absent)
        if empty and self.refusal(Rung.SWAP) is not None:
            return ()
        if self.pool.cannot_fill(len(self.round.vacancies()) + empty, at) is not None:
            return ()
        back = tuple(sorted(round_.absent))
        round_.absent = frozenset()
        return back

    # -- all processes begin anew --------------------------------------------------------------------------------------

    def cannot_restart(self, at: float) -> Reason | None:
        """Why the processes may not begin anew."""
        refused = self.refusal(Rung.RESTART)
        if refused is not None:
            return refused
        if not self.pool.room_for_a_world(at):
            return self.pool.no_room_for_the_world()
        return None

    def begin_restart_if_stuck(self, at: float) -> list[Command]:
        """Called when a generation is opened. The world was not formed several times in a row: some process or its
        engine cannot be saved, and nothing tells which."""
        round_ = self.round.state
        fresh = round_.kind.processes is Processes.FRESH
        stuck = round_.established and round_.attempts >= self.policy.attempts_per_rung and not fresh
        unfit = [rank for rank in sorted(round_.unfit) if rank not in round_.absent]
        if round_.kind.below is not None:
            return []  # what the processes hold is not worth saving
        saving = round_.kind.processes is Processes.SAVING
        if saving or not (stuck or unfit) or self.cannot_restart(at) is not None:
            return []
        round_.kind = replace(round_.kind, processes=Processes.SAVING)
        self.state.count(Rung.RESTART)
        why = because(Code.PROCESS_STUCK, count=round_.attempts)
        if unfit:
            why = because(Code.NO_EQUAL_REPLACEMENT, ranks=tuple(unfit), why=round_.unfit[unfit[0]].why)
        return [self.round.decision(at, DecisionKind.RESTART, because(Code.RESTART, why=why))]

    def give_up_restart_without_state(self, at: float) -> list[Command]:
        """Called when all members have reported. Those that held anything were lost meanwhile: there is nothing to
        save, and the state must come from peer memory or a checkpoint, if it can."""
        round_ = self.round.state
        saving = round_.kind.processes is Processes.SAVING
        if not saving or any(position.holds is not None for position in round_.positions.values()):
            return []
        round_.kind = replace(round_.kind, processes=Processes.KEPT)
        nothing = because(Code.NOTHING_TO_SAVE)
        reason = because(Code.NO_STRATEGY, strategy=Rung.RESTART.value, why=nothing)
        return [self.round.decision(at, DecisionKind.RESTART, reason)]
