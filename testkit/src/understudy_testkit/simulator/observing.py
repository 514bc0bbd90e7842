"""What the agents of a simulation see of its members, and whether the machine was right to end one of them.

Stands where `detection.liveness` stands on a real host: the same conditions, taken from the ground truth. Members that
are only slow are as silent as those that hang; the machine has to tell them apart by what it is told here.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from understudy.protocol.liveness import Condition, Sighting
from understudy_testkit.simulator.invariants import Violation
from understudy_testkit.simulator.member import SimulatedMember
from understudy_testkit.simulator.phases import MEETING_PHASES, MemberPhase

if TYPE_CHECKING:
    from understudy_testkit.simulator.simulation import Simulation

QUIET = 0.5  # seconds
_SUSPICIOUS = 5.0
_RECOVERS = frozenset({MemberPhase.UNWOUND, MemberPhase.AWAITING, MemberPhase.RECEIVING, MemberPhase.GIVING})
_WAITS = MEETING_PHASES | _RECOVERS | {MemberPhase.FINISHED, MemberPhase.CONFIRMING, MemberPhase.WITHOUT_CONTACT}
_IN_STEP = frozenset(
    {MemberPhase.COMPUTING, MemberPhase.COLLECTIVE, MemberPhase.FENCE, MemberPhase.APPLYING, MemberPhase.ESTABLISHING}
    | {MemberPhase.ARRIVING, MemberPhase.CONFIRMING, MemberPhase.WITHOUT_CONTACT}
)
_NOT_SEEN = frozenset({MemberPhase.STARTING, MemberPhase.LEAVING, MemberPhase.ENDED})
_SLACK = 0.3  # seconds for news to travel


def sighting_of(member: SimulatedMember, now: float, moved_at: float) -> Sighting | None:
    """None for a process that has not said hello, or that the job does not need any more."""
    if member.phase in _NOT_SEEN:
        return None
    outside = member.phase not in _IN_STEP
    if member.halted is not None and (member.hung or now < member.halted_until):
        seconds = now - member.halted_since
        return Sighting(member=member.id, condition=member.halted, seconds=seconds, outside=outside)
    if member.rank is None:
        return None
    silent = _silence(member, now, moved_at)
    receiving = member.phase is MemberPhase.RECEIVING and member.receives
    if silent < QUIET or receiving:
        return Sighting(member=member.id, condition=Condition.MOVING)
    condition = Condition.WAITING if member.phase in _WAITS else Condition.BUSY
    unchanged = silent if condition is Condition.BUSY and member.sleeps else 0.0
    return Sighting(
        member=member.id,
        condition=condition,
        seconds=silent,
        unchanged=unchanged,
        outside=outside,
        recovering=member.phase in _RECOVERS,
        heard=member.heard,
    )


def _silence(member: SimulatedMember, now: float, moved_at: float) -> float:
    """While it was held it could do nothing."""
    return now - moved_at - member.halted_between(moved_at, now)


def suspicious(sightings: Iterable[Sighting]) -> bool:
    """Would an agent tell of these by itself?"""
    return any(
        sighting.condition in (Condition.STOPPED, Condition.DEAF, Condition.TRACED) or sighting.seconds >= _SUSPICIOUS
        for sighting in sightings
        if sighting.condition is not Condition.MOVING
    )


def check_kill(world: "Simulation", victim: SimulatedMember) -> None:
    """8: no member is ended for being slow, except by the rules; and never the last holder of a state."""
    now, policy = world.now, world.policy
    if victim.rank is None or victim.state is None:
        return  # a spare or a joiner: it holds nothing
    # A member that was busy for too long before it was held is ended for that, right after it was let go.
    slack = 0.0 if victim.halted is Condition.TRACED else _SLACK
    gone = victim.hung or (victim.halted is not None and now < victim.halted_until + slack)
    if gone and victim.halted is Condition.TRACED:
        raise Violation(f"8: {victim.id} (rank {victim.rank}) is held by a debugger, and was ended")
    moved_at = world.moved_at.get(victim.id, 0.0)
    silent = now - moved_at - victim.halted_between(moved_at, now)
    if victim.busy_until and now < victim.busy_until + _SLACK:
        silent = max(silent, now - victim.busy_since - victim.halted_between(victim.busy_since, now))
    limit = policy.busy_timeout / 2 if victim.phase in _IN_STEP else policy.idle_timeout
    stuck = silent >= policy.stall_floor and victim.phase in _WAITS and victim.phase not in _RECOVERS
    overdue = silent >= limit or stuck
    if not gone and not overdue:
        raise Violation(f"8: {victim.id} (rank {victim.rank}) was ended after {silent:.1f} s in {victim.phase.value}")
    if gone and not overdue and now - victim.halted_since < policy.unresponsive_timeout:
        raise Violation(f"8: {victim.id} was ended {now - victim.halted_since:.1f} s after it was stopped")
    if not policy.peer_memory and world.machine.round.state.established and _is_last_holder(world, victim):
        raise Violation(f"8: {victim.id} (rank {victim.rank}) was ended, and no other member holds its state")


def check_neglect(world: "Simulation", victim: SimulatedMember) -> None:
    """9: a member that hangs while others wait for it is not left to an operator, if others hold its state and a spare
    is there."""
    machine = world.machine
    if victim.rank is None or victim.state is None or not machine.round.state.established:
        return
    if victim.id not in machine.roster.members:
        return  # its rank was given to another one, and no member waits for it
    if len(machine.round.state.twin_keys) < world.policy.world_size:
        return  # news of what members hold were lost
    others = [member for member in world.members.values() if member.alive and member.id != victim.id]
    waits = any(member.phase in MEETING_PHASES for member in others)
    disturbed = any(member.hung or max(member.halted_until, member.busy_until) > world.now - 60 for member in others)
    if not waits or disturbed or _is_last_holder(world, victim):
        return
    home = machine.roster.members[victim.id].host
    if machine.pool.cannot_fill(1 + len(machine.round.vacancies()), world.now, freed=[home]) is None:
        raise Violation(f"9: {victim.id} (rank {victim.rank}) hangs, others wait for it, and it was not ended")


def _is_last_holder(world: "Simulation", victim: SimulatedMember) -> bool:
    """Of any piece of the newest state. A member that is halted itself does not count; one that ended a moment ago
    does: the news of it is still on its way."""
    others = [
        member
        for member in world.members.values()
        if (member.alive or world.now < world.ended_at.get(member.id, float("-inf")) + _SLACK)
        and not member.forsaken
        and member.id != victim.id
        and member.state is not None
        and not (member.hung or (member.halted is not None and world.now + _SLACK < member.halted_until))
    ]
    held = {piece for member in others for piece in member.holdings}
    return not set(victim.holdings) <= held
