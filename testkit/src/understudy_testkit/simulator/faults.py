"""Faults as data: which member is killed or stopped, and at which moment of its life. A fault counts only when it has
fired.

Knows moments; does not know when they come: `simulation` asks `matches` whenever a member enters a place.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from understudy.foundation.ids import Rank
from understudy_testkit.simulator.member import SimulatedMember
from understudy_testkit.simulator.phases import MemberPhase


class FaultKind(enum.Enum):
    KILL = "kill"
    HANG = "hang"
    FLIP = "flip"  # a bit of its state changes, unnoticed
    SPOIL = "spoil"  # its state is not made of numbers any more
    PAUSE = "pause"  # its main thread is busy for a while; its control thread answers
    SLEEP = "sleep"  # the same, and neither its stack nor its CPU time changes
    STOP = "stop for a while"  # SIGSTOP, and later SIGCONT
    TRACE = "debugger"  # held by a debugger for a while
    ERROR = "script error"  # the script raises, for a reason that passes
    LIVELOCK = "livelock"  # from now on no collective comes to its end, and nothing is lost
    DEVICE = "device"  # its device aborts what it runs, by itself; mostly the process dies of it
    POISON = "poison"  # it can take part in no new world, unnoticed until there is to be one


class Moment(enum.Enum):
    """Where in a member's life a fault strikes."""

    SETUP = "setup"
    FIRST_STEP = "first step"
    COMPUTING = "computing"
    COLLECTIVE = "in collective"
    FENCE = "at fence"
    APPLYING = "applying"
    AFTER_APPLY = "after apply"
    BETWEEN_STEPS = "between steps"
    EVALUATING = "evaluating"  # in a collective between two steps
    STOP = "stop"  # as it hears that its generation is abandoned
    AWAITING_VERDICT = "awaiting verdict"
    REHEARSE = "rehearse"
    PREPARED = "prepared"  # a joiner that waits for the verdict
    APPLY_VERDICT = "applying by verdict"
    REGROUP = "regroup"
    TRANSFER = "transfer"  # the receiver
    DONATE = "donate"  # a donor, while it serves
    GIVING = "giving"  # a member that hands its rank over
    RESUME = "resume"  # right after it has resumed
    FINISHED = "finished"
    STARTING = "starting"  # a replacement that has not said hello
    IDLE_SPARE = "idle spare"


PHASES: dict[Moment, MemberPhase] = {
    Moment.SETUP: MemberPhase.SETUP,
    Moment.COMPUTING: MemberPhase.COMPUTING,
    Moment.COLLECTIVE: MemberPhase.COLLECTIVE,
    Moment.FENCE: MemberPhase.FENCE,
    Moment.APPLYING: MemberPhase.APPLYING,
    Moment.AFTER_APPLY: MemberPhase.BETWEEN,
    Moment.BETWEEN_STEPS: MemberPhase.COMPUTING,
    Moment.EVALUATING: MemberPhase.EVALUATING,
    Moment.AWAITING_VERDICT: MemberPhase.UNWOUND,
    Moment.REHEARSE: MemberPhase.REHEARSING,
    Moment.PREPARED: MemberPhase.UNWOUND,
    Moment.APPLY_VERDICT: MemberPhase.APPLYING_VERDICT,
    Moment.REGROUP: MemberPhase.REGROUPING,
    Moment.TRANSFER: MemberPhase.RECEIVING,
    Moment.GIVING: MemberPhase.GIVING,
    Moment.RESUME: MemberPhase.BETWEEN,
    Moment.FINISHED: MemberPhase.FINISHED,
    Moment.STARTING: MemberPhase.STARTING,
    Moment.IDLE_SPARE: MemberPhase.IDLE,
}
"""STOP, DONATE and FIRST_STEP are not places of one member; `simulation` announces or `matches` decides them."""

NAMES: dict[MemberPhase, str] = {
    **{place: moment.value for moment, place in PHASES.items()},
    MemberPhase.UNWOUND: Moment.AWAITING_VERDICT.value,
    MemberPhase.BETWEEN: Moment.BETWEEN_STEPS.value,
    MemberPhase.COMPUTING: Moment.COMPUTING.value,
    MemberPhase.ESTABLISHING: Moment.FIRST_STEP.value,
    MemberPhase.LEAVING: "leaving",
    MemberPhase.AWAITING: MemberPhase.AWAITING.value,
    MemberPhase.ARRIVING: Moment.FENCE.value,
    MemberPhase.CONFIRMING: Moment.FENCE.value,
    MemberPhase.WITHOUT_CONTACT: Moment.COLLECTIVE.value,
    MemberPhase.DRAINING: Moment.STOP.value,
}
"""Under which name a fault is counted whose victim had moved on to this place when it struck."""

FIRST_STEP_PHASES = frozenset(
    {MemberPhase.COMPUTING, MemberPhase.COLLECTIVE, MemberPhase.FENCE, MemberPhase.APPLYING, MemberPhase.ESTABLISHING}
    | {MemberPhase.ARRIVING, MemberPhase.WITHOUT_CONTACT}
)
IN_STEP = frozenset({Moment.COMPUTING, Moment.COLLECTIVE, Moment.FENCE, Moment.APPLYING, Moment.AFTER_APPLY})
AT_ONCE = frozenset({Moment.AFTER_APPLY, Moment.BETWEEN_STEPS, Moment.STOP, Moment.DONATE, Moment.RESUME})
"""Struck at the very moment; all others somewhere in the time that the member spends there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`rank` None: the one that comes first. `step`: not before this step. `also`: a second rank at the same
    instant."""

    kind: FaultKind
    moment: Moment
    rank: Rank | None = None
    step: int = 0
    also: Rank | None = None
    lasts: float = 0.0  # seconds, of what passes by itself
    all_ranks: bool = False  # it strikes all of them at once

    def matches(self, moment: Moment | None, member: SimulatedMember) -> bool:
        """Has the moment come? `moment` None: the member has just entered its place."""
        if self.rank is not None and member.rank != self.rank:
            return False
        if (member.holds or 0) < self.step and self.moment in IN_STEP:
            return False
        if moment is not None or self.moment in (Moment.STOP, Moment.DONATE):
            return moment is self.moment
        if self.moment is Moment.FIRST_STEP:
            return not self.step_is_over(member) and member.phase in FIRST_STEP_PHASES
        if PHASES[self.moment] is not member.phase:
            return False
        return _is_really(self.moment, member)

    @staticmethod
    def step_is_over(member: SimulatedMember) -> bool:
        return member.established and member.phase is not MemberPhase.ESTABLISHING


def _is_really(moment: Moment, member: SimulatedMember) -> bool:
    """Moments that share a place are told apart."""
    match moment:
        case Moment.RESUME:
            return member.resumed and member.holds == member.target
        case Moment.AFTER_APPLY:
            return not (member.resumed and member.holds == member.target)
        case Moment.PREPARED:
            return member.state is None
        case Moment.AWAITING_VERDICT:
            return member.state is not None
        case Moment.STARTING:
            return member.ticket == 0
    return True


RECOVERY_MOMENTS = (
    Moment.STOP,
    Moment.AWAITING_VERDICT,
    Moment.REHEARSE,
    Moment.PREPARED,
    Moment.APPLY_VERDICT,
    Moment.REGROUP,
    Moment.TRANSFER,
    Moment.DONATE,
    Moment.RESUME,
    Moment.STARTING,
)
OF_ANY_RANK = frozenset(
    {Moment.REHEARSE, Moment.PREPARED, Moment.TRANSFER, Moment.DONATE, Moment.STARTING, Moment.IDLE_SPARE}
    | {Moment.APPLY_VERDICT}
)
"""A fault at one of these strikes the first member that comes there, whatever its rank."""

_NOT_IN_TRAINING = (*RECOVERY_MOMENTS, Moment.GIVING, Moment.EVALUATING)
TRAINING_MOMENTS = tuple([moment for moment in Moment if moment not in _NOT_IN_TRAINING])


def draw_faults(chance: Random, count: int, world_size: int, steps: int, hang_share: float) -> tuple[Fault, ...]:
    """A first fault somewhere in training, the others anywhere."""
    faults: list[Fault] = []
    for number in range(count):
        moments: Sequence[Moment] = TRAINING_MOMENTS
        if number and chance.random() < 0.7:
            moments = RECOVERY_MOMENTS
        faults.append(_draw(chance, chance.choice(moments), world_size, steps, hang_share))
    return tuple(faults)


def draw_fault_of_move(chance: Random) -> Fault:
    """A member that takes part in a move, at one of its moments."""
    moments = (Moment.GIVING, Moment.REHEARSE, Moment.PREPARED, Moment.STOP, Moment.TRANSFER, Moment.DONATE)
    kind = FaultKind.HANG if chance.random() < 0.3 else FaultKind.KILL
    return Fault(kind=kind, moment=chance.choice(moments))


def _draw(chance: Random, moment: Moment, world_size: int, steps: int, hang_share: float) -> Fault:
    any_rank = moment in OF_ANY_RANK or chance.random() < 0.2
    hangs = moment not in (Moment.FINISHED, Moment.STARTING) and chance.random() < hang_share
    return Fault(
        kind=FaultKind.HANG if hangs else FaultKind.KILL,
        moment=moment,
        rank=None if any_rank else Rank(chance.randrange(world_size)),
        step=chance.randrange(steps),
        also=Rank(chance.randrange(world_size)) if chance.random() < 0.15 else None,
    )
