"""From the reports of all ranks to the plan of a generation: the step at which all resume, and donors by receiver."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from understudy.foundation.ids import Rank, StepNumber
from understudy.protocol.commands import Tail
from understudy.protocol.commit import Action, action_for, judge
from understudy.protocol.donors import NoDonor, choose_donors
from understudy.protocol.positions import Position
from understudy.protocol.probation import StepDown
from understudy.protocol.reasons import Code, Reason, because
from understudy.protocol.recovery_kind import ORDINARY, Processes, RecoveryKind, Target
from understudy.protocol.rungs import Rung

Donors = tuple[tuple[Rank, tuple[Rank, ...]], ...]
"""Receiver -> its donors, in the order in which receivers are served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known when all have reported. `leavers`: positions of members that hand their ranks over. `benched`:
    of members that live although their ranks are absent; what they have applied counts. `refused`: rungs that may not
    be taken, and why. `no_degrade`: why the world does not go on with fewer ranks."""

    positions: Mapping[Rank, Position]
    leavers: Mapping[Rank, Position]
    twin_keys: Mapping[Rank, str]
    holdings: Mapping[str, frozenset[int]]
    donors_per_receiver: int
    benched: Mapping[Rank, Position] = field(default_factory=dict)
    refused: Mapping[Rung, Reason] = field(default_factory=dict)
    no_degrade: Reason = field(default=because(Code.RANKS_FILLED))
    older_only: bool = False  # what is not trusted was left out
    durable_known: bool = True  # every rank has said which checkpoints it could load


@dataclass(frozen=True, slots=True)
class CheckpointsWanted:
    """There can be no plan before it is known which durable checkpoints there are. `tried`: why no other strategy
    will do."""

    tried: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class NoPlan:
    """No strategy will do. `tried`: why each of them will not."""

    tried: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`handed`: ranks that take their state from their leavers. `rewind`: to an earlier state than the newest.
    `rung`: where the state comes from for a rank that neither holds nor receives it. `from_copies`: receivers whose
    donor keeps a copy of their state. `distrust`: no rank counts as a holder of it."""

    step: StepNumber
    donors: Donors
    reason: Reason
    handed: tuple[Rank, ...] = ()
    rewind: bool = False
    rung: Rung = Rung.SWAP
    from_copies: tuple[Rank, ...] = ()
    distrust: bool = False


def make_plan(
    situation: Situation, kind: RecoveryKind = ORDINARY, at_boundary: bool = False
) -> Plan | CheckpointsWanted | NoPlan:
    """The plan, or the reasons why there can be none."""
    step_down = kind.below
    if kind.processes is Processes.SAVING:
        return _plan_to_save(situation)
    below = None if step_down is None else _plan_below(situation, step_down)
    if isinstance(below, Plan | CheckpointsWanted) or (below is not None and step_down is not None and step_down.must):
        return below
    back = _plan_to_go_back(situation) if kind.target is Target.AGREED else None
    plan = back or _plan_to_go_on(situation, at_boundary)
    if below is None or not isinstance(plan, Plan):
        return plan
    return replace(plan, reason=because(Code.NOTHING_BELOW, plan=plan.reason, tried=below.tried))


def _plan_below(situation: Situation, step_down: StepDown) -> Plan | CheckpointsWanted | NoPlan:
    """With nothing of what is not trusted: not even what members hold that lived through it all."""
    left = {rank: step_down.left_of(position) for rank, position in situation.positions.items()}
    trusted = replace(situation, positions=left, leavers={}, benched={}, older_only=True)
    verdict = judge({**situation.positions, **situation.leavers, **situation.benched})
    newest = None if verdict is None else verdict.step
    plan = _plan_to_go_back(trusted) or _plan_from_saved(trusted, newest, (step_down.reason,))
    return replace(plan, distrust=True, rewind=True) if isinstance(plan, Plan) else plan


def _plan_to_go_on(situation: Situation, at_boundary: bool) -> Plan | CheckpointsWanted | NoPlan:
    known = {**situation.positions, **situation.leavers, **situation.benched}
    verdict = judge(known)
    if verdict is None:
        return _plan_from_saved(situation, None, (because(Code.NO_STATE_LEFT),))
    found = _find_donors(situation, verdict.step)
    if isinstance(found, NoDonor):
        no_swap = _no(Rung.SWAP, _why_no_donor(situation, found, verdict.step))
        return _plan_from_saved(situation, verdict.step, (no_swap, _no(Rung.DEGRADE, situation.no_degrade)))
    swap = _state_from_twins(situation, found)
    if at_boundary and verdict.committed is None and not any(position.at_fence for position in known.values()):
        reason = because(Code.AT_BOUNDARY, step=verdict.step, swap=swap)
    elif verdict.committed is not None:
        reason = because(Code.COMMIT, why=verdict.reason, swap=swap)
    else:
        reason = because(Code.RETRY, why=verdict.reason, swap=swap)
    return Plan(step=verdict.step, donors=_in_turn(situation, found), reason=reason, handed=_handed(found))


def _plan_from_saved(
    situation: Situation, newest: StepNumber | None, tried: tuple[Reason, ...]
) -> Plan | CheckpointsWanted | NoPlan:
    """Peer memory: the newest state that every rank holds, has saved, or can take from ranks that have it or keep a
    copy of it. No rank goes further back than it must; all go back to the same."""
    if Rung.PEER_MEMORY in situation.refused:
        refused = situation.refused[Rung.PEER_MEMORY]
        return _plan_from_checkpoint(situation, newest, (*tried, _no(Rung.PEER_MEMORY, refused)))
    known = situation.positions.values()
    steps = {step for position in known for step in (*position.saved, *(kept for _, kept in position.keeps))}
    if newest is not None:
        steps = {step for step in steps if step <= newest} | {newest}
    for step in sorted(steps, reverse=True):
        found, from_copies = _find_donors(situation, step, saved=True), {}
        if isinstance(found, NoDonor):
            from_copies = _keepers(situation, step)
            found = _find_donors(situation, step, saved=True, from_copies=from_copies)
        if not isinstance(found, NoDonor):
            return Plan(
                step=step,
                donors=_in_turn(situation, found, from_copies),
                reason=because(Code.PEER_MEMORY, tried=tried, how=_how_saved(situation, step, newest, from_copies)),
                handed=_handed(found),
                rewind=newest is None or step < newest,
                rung=Rung.PEER_MEMORY,
                from_copies=tuple(sorted(from_copies)),
            )
    if steps - {newest}:
        why = because(Code.NOT_SAVED_BY_ALL)
    else:
        why = because(Code.NOTHING_OLDER_SAVED) if situation.older_only else because(Code.NOTHING_SAVED)
    return _plan_from_checkpoint(situation, newest, (*tried, _no(Rung.PEER_MEMORY, why)))


def _plan_from_checkpoint(
    situation: Situation, newest: StepNumber | None, tried: tuple[Reason, ...]
) -> Plan | CheckpointsWanted | NoPlan:
    """The newest one that every rank can load. All load it, even holders of it: nothing else is known to fit."""
    tried = (*tried, _no(Rung.RESTART, because(Code.SAME_STATE)))
    if Rung.CHECKPOINT in situation.refused:
        return NoPlan((*tried, _no(Rung.CHECKPOINT, situation.refused[Rung.CHECKPOINT])))
    if not situation.durable_known:
        return CheckpointsWanted(tried)
    known = [set(position.durable) for position in situation.positions.values()]
    steps = {step for step in set.intersection(*known) if newest is None or step <= newest} if known else set()
    if not steps:
        if any(known):
            why = because(Code.NO_WHOLE_CHECKPOINT)
        else:
            why = because(Code.NO_OLDER_CHECKPOINT) if situation.older_only else because(Code.NO_CHECKPOINT)
        return NoPlan((*tried, _no(Rung.CHECKPOINT, why)))
    step = max(steps)
    reason = because(Code.CHECKPOINT, tried=tried, step=step, again=_runs_again(step, newest))
    return Plan(step=step, donors=(), reason=reason, rewind=True, rung=Rung.CHECKPOINT)


def _plan_to_save(situation: Situation) -> Plan:
    """Before all processes begin anew: the newest state is saved by every rank that has it without help. Some
    rank has one."""
    verdict = judge(situation.positions)
    assert verdict is not None
    reason = because(Code.STATE_IS_SAVED, step=verdict.step, why=verdict.reason)
    return Plan(step=verdict.step, donors=(), reason=reason, rung=Rung.RESTART)


def _keepers(situation: Situation, step: StepNumber) -> dict[Rank, Rank]:
    """For each rank that must receive that state: one that keeps a copy of it, each giving to as few as can be."""
    found: dict[Rank, Rank] = {}
    for receiver in sorted(_receivers(situation, step, saved=True) - situation.leavers.keys()):
        keepers = [rank for rank, p in sorted(situation.positions.items()) if (receiver, step) in p.keeps]
        if keepers:
            found[receiver] = min(keepers, key=lambda rank: list(found.values()).count(rank))
    return found


def _no(rung: Rung, why: Reason) -> Reason:
    return because(Code.NO_STRATEGY, strategy=rung.value, why=why)


def _how_saved(
    situation: Situation, step: StepNumber, newest: StepNumber | None, from_copies: Mapping[Rank, Rank]
) -> tuple[Reason, ...]:
    again = _runs_again(step, newest)
    of_step = step if again is None else None
    copies = [
        because(Code.KEEPS_COPY, keeper=keeper, rank=rank, step=of_step) for rank, keeper in sorted(from_copies.items())
    ]
    if again is not None:
        return (because(Code.GOES_BACK_TO_SAVED, step=step), *copies, again)
    ranks = tuple(rank for rank, p in sorted(situation.positions.items()) if p.holds is None and step in p.saved)
    return (because(Code.HAS_SAVED, ranks=ranks, step=step), *copies) if ranks else tuple(copies)


def _runs_again(step: StepNumber, newest: StepNumber | None) -> Reason | None:
    """`newest`: the state that the survivors had come to."""
    if newest is None or step >= newest:
        return None
    if step + 1 == newest:
        return because(Code.STEP_RUNS_AGAIN, step=step)
    return because(Code.STEPS_RUN_AGAIN, step=step, last=newest - 1)


def _state_from_twins(situation: Situation, found: dict[Rank, tuple[Rank, ...]]) -> Reason | None:
    empty = [rank for rank in sorted(found) if situation.positions[rank].holds is None and rank not in found[rank]]
    return because(Code.STATE_FROM_TWINS, ranks=tuple(empty)) if empty else None


def _why_no_donor(situation: Situation, found: NoDonor, step: StepNumber) -> Reason:
    """Ranks without which the world went on may still hold that shard, as it was then."""
    known = {**situation.positions, **situation.benched}
    key = situation.twin_keys.get(found.rank)
    held = {twin: p.holds for twin, p in known.items() if p.holds is not None and situation.twin_keys.get(twin) == key}
    if key is None or not held or (newest := max(held.values())) >= step:
        return found.reason
    older = tuple(twin for twin in sorted(held) if held[twin] == newest)
    return because(Code.ONLY_OLDER_STATE, why=found.reason, ranks=older, step=newest)


def _handed(found: dict[Rank, tuple[Rank, ...]]) -> tuple[Rank, ...]:
    return tuple(sorted(rank for rank, givers in found.items() if rank in givers))


def _receivers(situation: Situation, step: StepNumber, saved: bool) -> set[Rank]:
    return {
        rank
        for rank, p in situation.positions.items()
        if action_for(p, step) is Action.RECEIVE and not (saved and step in p.saved)
    }


def _find_donors(
    situation: Situation, step: StepNumber, saved: bool = False, from_copies: Mapping[Rank, Rank] | None = None
) -> dict[Rank, tuple[Rank, ...]] | NoDonor:
    """A receiver whose leaver has the state takes it from there: from its own rank, so to speak. Then it can give to
    others, if no other rank can. `saved`: a rank that has saved the state needs no donor. `from_copies`: receivers that
    are served by a rank that keeps a copy of their state. Where swaps are refused, a rank that holds nothing has no
    donor."""
    receivers = _receivers(situation, step, saved)
    handed = {rank for rank, p in situation.leavers.items() if action_for(p, step) is not Action.RECEIVE} & receivers
    served = {rank: (rank,) for rank in handed} | {rank: (keeper,) for rank, keeper in (from_copies or {}).items()}
    givers = [rank for rank in situation.positions if rank not in receivers]
    if Rung.SWAP in situation.refused:
        for rank in sorted(receivers - served.keys()):
            if situation.positions[rank].holds is None:
                return NoDonor(rank, situation.refused[Rung.SWAP])
    found = _choose(situation, receivers - served.keys(), givers)
    if isinstance(found, NoDonor) and served:
        found = _choose(situation, receivers - served.keys(), [*givers, *served])
    return found if isinstance(found, NoDonor) else found | served


def _choose(situation: Situation, receivers: set[Rank], givers: list[Rank]) -> dict[Rank, tuple[Rank, ...]] | NoDonor:
    limit = situation.donors_per_receiver
    return choose_donors(receivers, givers, situation.twin_keys, situation.holdings, limit)


def _in_turn(situation: Situation, found: dict[Rank, tuple[Rank, ...]], from_copies: Collection[Rank] = ()) -> Donors:
    """A receiver that has nothing to lose comes first, and before it one that takes from a leaver or from a copy. A
    laggard's older state is the last one if its donors die before it has been served; and by then a joiner is whole,
    which can give in their place."""

    def turn(entry: tuple[Rank, tuple[Rank, ...]]) -> tuple[bool, bool, bool, Rank]:
        receiver, givers = entry
        from_another = receiver not in givers
        return (
            from_another,
            receiver not in from_copies,
            situation.positions[receiver].holds is not None,
            receiver,
        )

    return tuple(sorted(found.items(), key=turn))


def _plan_to_go_back(situation: Situation) -> Plan | None:
    """To the newest state that was agreed on and is still held, as a whole, in the copies that members kept. None: it
    is lost, and the world goes on with what most twins hold."""
    kept = {position.kept for position in situation.positions.values() if position.kept is not None}
    for step in sorted(kept, reverse=True):
        givers = [rank for rank, position in situation.positions.items() if position.kept == step]
        found = _choose(situation, set(situation.positions) - set(givers), givers)
        if not isinstance(found, NoDonor):
            reason = because(Code.REWIND, step=step)
            return Plan(step=step, donors=_in_turn(situation, found), reason=reason, rewind=True)
    return None


def tail_of(plan: Plan, positions: Mapping[Rank, Position]) -> Tail | None:
    """Whether survivors are in the middle of collectives between two steps, and which ranks lack results of these.
    None where all ranks go back: then whatever was computed there is void."""
    survivors = {rank: p for rank, p in positions.items() if p.holds == plan.step}
    if plan.rewind or plan.distrust:
        return None
    if not survivors:
        return _tail_to_come(plan, positions)
    if not any(position.in_tail for position in survivors.values()):
        return None
    done = max(position.tail for position in survivors.values())
    donor = min(rank for rank, position in survivors.items() if position.tail == done)
    lacking = (rank for rank in sorted(positions) if rank not in survivors or survivors[rank].tail < done)
    return Tail(done=done, donor=donor, lacking=tuple(lacking) if done else ())


def _tail_to_come(plan: Plan, positions: Mapping[Rank, Position]) -> Tail | None:
    """All survivors apply the step by the verdict. Their scripts go on with what follows it, and need the joiners
    there."""
    applying = [rank for rank, position in positions.items() if action_for(position, plan.step) is Action.APPLY]
    if not any(positions[rank].has_tails for rank in applying):
        return None
    return Tail(done=0, donor=min(applying), begun=False)
