"""When a swap does not help: which rung is taken instead, and why the higher ones were not.

    swap ─▶ degrade ─▶ peer memory ─▶ restart from memory ─▶ durable checkpoint ─▶ the job stops, with all the reasons

Where a state comes from (a twin, peer memory, a checkpoint) is decided in `planning`, when everybody has reported.
Here is decided what needs other processes: a rank for which there is no spare, and a world that cannot be formed as it
is; and here is counted how often each rung was taken, for its budget. A rung counts when the world has resumed by it, a
restart when it begins. Planned moves, and absent ranks that come back at a boundary, are no rungs. Called by `job`.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from understudy.foundation.ids import Rank
from understudy.protocol.commands import Command, DecisionKind, KillMember, RecordDecision, ResumeAt
from understudy.protocol.donors import named
from understudy.protocol.rungs import Rung

if TYPE_CHECKING:
    from understudy.protocol.job import JobMachine


@dataclass(slots=True)
class Ladder:
    """`taken`: how often each rung was. `under_way`: swap and degrade, which are decided before there is a plan, until
    the world has resumed."""

    taken: dict[Rung, int] = field(default_factory=dict)
    under_way: set[Rung] = field(default_factory=set)

    def copy(self) -> "Ladder":
        return Ladder(dict(self.taken), set(self.under_way))

    def count(self, rung: Rung) -> None:
        self.taken[rung] = self.taken.get(rung, 0) + 1

    def resumed(self, plan: ResumeAt, cold: bool) -> None:
        """`cold`: all processes have begun anew. That was counted, and the copies that they found are part of it."""
        if plan.rung is Rung.CHECKPOINT or (not cold and (plan.rung is not Rung.SWAP or Rung.SWAP in self.under_way)):
            self.count(plan.rung)
        if Rung.DEGRADE in self.under_way and plan.absent:
            self.count(Rung.DEGRADE)
        self.under_way.clear()


def refusal(machine: "JobMachine", rung: Rung) -> str | None:
    return machine.policy.rungs.refusal(rung, machine.ladder.taken.get(rung, 0))


def refusals(machine: "JobMachine") -> dict[Rung, str]:
    """The rungs from which no state may come now."""
    if machine.recovery.cold:
        wanted = [Rung.CHECKPOINT]
    else:
        swap = [Rung.SWAP] if Rung.SWAP in machine.ladder.under_way else []
        wanted = [*swap, Rung.PEER_MEMORY, Rung.CHECKPOINT]
    return {rung: why for rung in wanted if (why := refusal(machine, rung)) is not None}


# -- no spare ---------------------------------------------------------------------------------------------------------


def go_on_without_the_vacant(machine: "JobMachine", at: float) -> RecordDecision | str | None:
    """Nothing to do while there is, or may be, somebody for every vacant rank. If there is and swaps are used up, to
    degrade comes next; if that cannot be either, the rank is given away, and its state must come from further down."""
    vacant = machine.recovery.vacancies()
    if machine.recovery.cold or not vacant:
        return None
    unfit = [rank for rank in vacant if rank in machine.recovery.unfit]
    if unfit:
        return _go_on_without_the_unfit(machine, at, unfit)
    no_way = machine.pool.cannot_fill(len(vacant), at)
    if no_way is not None:
        return go_on_without(machine, at, no_way)
    refused = refusal(machine, Rung.SWAP)
    degraded = go_on_without(machine, at, refused) if refused is not None else None
    return None if isinstance(degraded, str) else degraded


def _go_on_without_the_unfit(machine: "JobMachine", at: float, unfit: list[Rank]) -> RecordDecision | str | None:
    """No replacement fits these ranks, and another one would not either."""
    known = machine.recovery.unfit
    degraded = go_on_without(machine, at, f"{named(unfit)}: {known[unfit[0]].why}")
    if not isinstance(degraded, str):
        machine.migration.hopeless |= set(unfit)
        return degraded
    helps = all(known[rank].restart_helps for rank in unfit)
    return None if helps and cannot_restart(machine, at) is None else degraded


def go_on_without(machine: "JobMachine", at: float, no_swap: str) -> RecordDecision | str:
    """There is nobody for the vacant ranks. Drop the replicas that they belong to; or say why that cannot be."""
    recovery = machine.recovery
    vacant = recovery.vacancies()
    refused = cannot_degrade(machine, vacant)
    if refused is not None:
        return f"no swap: {no_swap}; no degrade: {refused}"
    dropped = frozenset().union(*(recovery.replicas[rank] for rank in vacant))
    recovery.absent |= dropped
    machine.ladder.under_way.add(Rung.DEGRADE)
    left = f"{recovery.present_count} of {machine.policy.world_size} ranks"
    reason = (
        f"{Rung.DEGRADE.value}: no swap: {no_swap}; the world goes on with {left} at the same global batch, without "
        f"{named(sorted(recovery.absent))}. Not bit-identical from now on; they come back when there are spares"
    )
    return machine.decision(at, DecisionKind.DEGRADE, reason)


def cannot_degrade(machine: "JobMachine", vacant: list[Rank]) -> str | None:
    recovery, world = machine.recovery, machine.policy.world_size
    not_allowed = refusal(machine, Rung.DEGRADE)
    if not_allowed is not None:
        return not_allowed
    if not recovery.established:
        return "the world has no step behind it"
    unknown = [rank for rank in vacant if rank not in recovery.replicas]
    if unknown:
        return f"{named(unknown)} cannot be done without: only replicas of DDP and HSDP can"
    dropped = recovery.absent.union(*(recovery.replicas[rank] for rank in vacant))
    left = [Rank(rank) for rank in range(world) if Rank(rank) not in dropped]
    held = {recovery.twin_keys.get(rank) for rank in left}
    if not left or held < set(recovery.twin_keys.values()):
        return "no whole replica would be left"
    return None


def why_not_degraded(machine: "JobMachine") -> str:
    """For a verdict that takes a lower rung."""
    positions = machine.recovery.positions
    empty = [rank for rank, position in sorted(positions.items()) if position.holds is None]
    return cannot_degrade(machine, empty) or "there is somebody for every rank"


def make_whole_if_possible(machine: "JobMachine", at: float) -> str:
    """A generation is opened anyway: if there are spares for the absent ranks by now, they come back with it. Returns
    what is to be said about it."""
    recovery = machine.recovery
    if not recovery.absent or recovery.absent & machine.migration.hopeless:
        return ""
    empty = sum(rank not in machine.roster.holders for rank in recovery.absent)
    if empty and refusal(machine, Rung.SWAP) is not None:
        return ""
    if machine.pool.cannot_fill(len(recovery.vacancies()) + empty, at) is not None:
        return ""
    back = sorted(recovery.absent)
    recovery.absent = frozenset()
    return f"; {named(back)} {'comes' if len(back) == 1 else 'come'} back with it, for there are spares"


# -- all processes begin anew -----------------------------------------------------------------------------------------


def cannot_restart(machine: "JobMachine", at: float) -> str | None:
    """Why the processes may not begin anew."""
    policy = machine.policy
    refused = refusal(machine, Rung.RESTART)
    if refused is not None:
        return refused
    if not machine.pool.room_for_a_world(at):
        return f"there is no room for {policy.world_size} ranks: a host was lost or is under suspicion"
    return None


def begin_restart_if_stuck(machine: "JobMachine", at: float) -> list[Command]:
    """Called when a generation is opened. The world was not formed several times in a row: some process or its engine
    cannot be saved, and nobody can tell which."""
    recovery = machine.recovery
    stuck = recovery.established and recovery.attempts >= machine.policy.attempts_per_rung and not recovery.cold
    unfit = [rank for rank in sorted(recovery.unfit) if rank not in recovery.absent]
    if recovery.step_down is not None:
        return []  # what the processes hold is not worth saving
    if recovery.restart or not (stuck or unfit) or cannot_restart(machine, at) is not None:
        return []
    recovery.restart = True
    machine.ladder.count(Rung.RESTART)
    why = f"{recovery.attempts} generations in a row did not resume, so some process cannot be saved"
    if unfit:
        why = f"no replacement can be made equal to {named(unfit)}: {recovery.unfit[unfit[0]].why}"
    reason = (
        f"{Rung.RESTART.value}: no swap, no degrade, no peer memory: {why}; all processes begin anew with the state "
        "that they save now"
    )
    return [machine.decision(at, DecisionKind.RESTART, reason)]


def give_up_restart_without_state(machine: "JobMachine", at: float) -> list[Command]:
    """Called when everybody has reported. Whoever held anything was lost meanwhile: there is nothing to save, and the
    state must come from peer memory or a checkpoint, if it can."""
    recovery = machine.recovery
    if not recovery.restart or any(position.holds is not None for position in recovery.positions.values()):
        return []
    recovery.restart = False
    reason = f"no {Rung.RESTART.value}: no live rank holds any state that could be saved"
    return [machine.decision(at, DecisionKind.RESTART, reason)]


def begin_anew(machine: "JobMachine", at: float) -> list[Command]:
    """Everything that can be saved is saved: end all processes with a rank, and give their ranks to others."""
    recovery = machine.recovery
    reason = f"{recovery.reason}; the state is saved, and every process begins anew"
    with_rank = [member for member in machine.roster.members.values() if member.rank is not None]
    kills: list[Command] = [KillMember(member=member.id, reason="all processes begin anew") for member in with_rank]
    for member in with_rank:
        machine.roster.remove(member)
    machine.migration.reasons.clear()
    recovery.absent = frozenset()
    recovery.unfit.clear()
    recovery.restart, recovery.cold = False, True
    return [*kills, *machine.after(at, recovery.open(at, machine.pool, reason, DecisionKind.RESTART))]
