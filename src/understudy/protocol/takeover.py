"""What a coordinator leaves to its successor, and how the successor goes on.

The state is recorded with every generation, and again when it has resumed; which of its fields are kept is said beside
each of them (`succession`). They are enough to go on: whatever else a coordinator knew (positions, which spares are
warm, twin keys) the members say again when their hosts have found the new one. A recovery that was under way is not
continued but opened again, in the next generation; that is what every new fault does too. A member that prepared for a
rank that was to move, or was leaving one, is not known to the successor and is dismissed; the move begins anew.
"""

from understudy.foundation.ids import MemberId, Rank
from understudy.protocol.commands import Command
from understudy.protocol.job import JobMachine
from understudy.protocol.policy import Policy
from understudy.protocol.reasons import Code, because
from understudy.protocol.roster import Roster, Standing
from understudy.protocol.stages import Stage
from understudy.protocol.state import State
from understudy.protocol.succession import for_successor, from_predecessor

_SETTLED = (Stage.TRAINING, Stage.FOUNDING)


def facts_of(machine: JobMachine, at: float) -> State:
    """What a successor may know. Linear in the size of the world; asked for once per generation."""
    facts = for_successor(machine.state, at)
    _keep_holders_and_spares(facts.roster)
    if facts.ending.released:
        facts.round.stage = Stage.TRAINING  # no successor may form that world again
    return facts


def active(facts: State) -> dict[Rank, MemberId]:
    """The members that trained, by rank."""
    seated = facts.roster.seated()
    return {m.rank: m.id for m in seated if m.rank is not None and m.standing is Standing.ACTIVE}


def take_over(policy: Policy, facts: State, at: float) -> tuple[JobMachine, tuple[Command, ...]]:
    """A machine that goes on from `facts`, and what is to be done first."""
    state = from_predecessor(facts, at)
    for host in state.hosts.by_id.values():
        if host.present:
            state.hosts.fall_silent(host, at, policy.takeover_patience)
    for member in state.roster.members.values():
        member.connected = True  # what it is told too early is lost, and said again when it says hello
        member.assigned_at = at if member.rank is not None else 0.0
    machine = JobMachine(policy, state)
    if state.ending.stopped is not None:
        return machine, (state.ending.stopped,)
    if state.round.stage not in _SETTLED:
        state.round.stage = Stage.STOPPING
        return machine, machine.open_again(at, because(Code.COORDINATOR_CHANGED))
    state.round.stage = Stage.TRAINING if state.round.established else Stage.FOUNDING
    return machine, ()


def _keep_holders_and_spares(roster: Roster) -> None:
    for id_ in (*roster.understudies.values(), *roster.leavers.values()):
        roster.remove(roster.members[id_])
    for id_ in list(roster.parked):
        member = roster.members[id_]
        member.standing = Standing.STARTING  # if it is warm, it will say so again
    waiting = [id_ for id_, member in roster.members.items() if member.rank is None]
    roster.parked, roster.starting = {}, dict.fromkeys(waiting)
