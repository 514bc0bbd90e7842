"""From what everybody reported to the plan of a generation: at which step all resume, and who gives state to whom."""

from collections.abc import Mapping
from dataclasses import dataclass

from understudy.foundation.ids import Rank, StepNumber
from understudy.protocol.commit import Action, action_for, judge
from understudy.protocol.donors import NoDonor, choose_donors
from understudy.protocol.positions import Position

Donors = tuple[tuple[Rank, tuple[Rank, ...]], ...]
"""Receiver -> its donors, in the order in which receivers are served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known when all have reported. `leavers`: positions of those who hand their ranks over."""

    positions: Mapping[Rank, Position]
    leavers: Mapping[Rank, Position]
    twin_keys: Mapping[Rank, str]
    holdings: Mapping[str, frozenset[int]]
    donors_per_receiver: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`handed`: ranks that take their state from their leavers. `rewind`: to a state that was agreed on earlier."""

    step: StepNumber
    donors: Donors
    reason: str
    handed: tuple[Rank, ...] = ()
    rewind: bool = False


def make_plan(situation: Situation, *, rewind: bool, at_boundary: bool) -> Plan | str:
    """The plan, or the reason why there can be none."""
    back = _plan_to_go_back(situation) if rewind else None
    return back or _plan_to_go_on(situation, at_boundary)


def _plan_to_go_on(situation: Situation, at_boundary: bool) -> Plan | str:
    known = {**situation.positions, **situation.leavers}
    verdict = judge(known)
    if verdict is None:
        return "no live rank holds any state"
    found = _find_donors(situation, verdict.step)
    if isinstance(found, NoDonor):
        return f"no swap: {found.reason}"
    if at_boundary and verdict.committed is None and not any(position.arrived for position in known.values()):
        reason = f"every rank has stopped before step {verdict.step}"
    else:
        reason = f"{'commit' if verdict.committed is not None else 'retry'}: {verdict.reason}"
    handed = tuple(sorted(rank for rank, givers in found.items() if rank in givers))
    return Plan(step=verdict.step, donors=_in_turn(situation, found), reason=reason, handed=handed)


def _find_donors(situation: Situation, step: StepNumber) -> dict[Rank, tuple[Rank, ...]] | NoDonor:
    """A receiver whose leaver has the state takes it from there: from its own rank, so to speak. Then it can give to
    others, if nobody else can."""
    receivers = {rank for rank, p in situation.positions.items() if action_for(p, step) is Action.RECEIVE}
    handed = {rank for rank, p in situation.leavers.items() if action_for(p, step) is not Action.RECEIVE} & receivers
    givers = [rank for rank in situation.positions if rank not in receivers]
    found = _choose(situation, receivers - handed, givers)
    if isinstance(found, NoDonor) and handed:
        found = _choose(situation, receivers - handed, [*givers, *handed])
    return found if isinstance(found, NoDonor) else found | {rank: (rank,) for rank in handed}


def _choose(situation: Situation, receivers: set[Rank], givers: list[Rank]) -> dict[Rank, tuple[Rank, ...]] | NoDonor:
    limit = situation.donors_per_receiver
    return choose_donors(receivers, givers, situation.twin_keys, situation.holdings, limit)


def _in_turn(situation: Situation, found: dict[Rank, tuple[Rank, ...]]) -> Donors:
    """Who has nothing to lose comes first, and before it who takes from a leaver. A laggard's older state is the last
    one if its donors die before it has been served; and by then a joiner is whole, which can give in their place."""

    def turn(entry: tuple[Rank, tuple[Rank, ...]]) -> tuple[bool, bool, Rank]:
        receiver, givers = entry
        return receiver not in givers, situation.positions[receiver].holds is not None, receiver

    return tuple(sorted(found.items(), key=turn))


def _plan_to_go_back(situation: Situation) -> Plan | None:
    """To the newest state that was agreed on and is still held, as a whole, in the copies that members kept. None: it
    is lost, and the world goes on with what most twins hold."""
    kept = {position.kept for position in situation.positions.values() if position.kept is not None}
    for step in sorted(kept, reverse=True):
        givers = [rank for rank, position in situation.positions.items() if position.kept == step]
        found = _choose(situation, set(situation.positions) - set(givers), givers)
        if not isinstance(found, NoDonor):
            reason = f"rewind: everybody goes back to the state before step {step}, on which all twins agreed"
            return Plan(step=step, donors=_in_turn(situation, found), reason=reason, rewind=True)
    return None
