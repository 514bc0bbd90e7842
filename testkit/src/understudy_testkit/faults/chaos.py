"""From a seed to one run in which everything happens: a schedule as data, tied to steps and not to the clock.

Knows: which faults a world of four ranks can come through, and which ranks are absent after them. Does not know:
processes and time. `chaos_run` carries a schedule out, `chaos_decisions` says what of its decisions a seed determines,
and the claim also plays it in the simulator (`simulator.scripted`).

A run is a row of acts, one per stretch of steps. Before an act spares may come and go; then its faults strike. Kinds
are drawn from a deck that is dealt out before it is shuffled again, so that a few acts see many of them.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from understudy_testkit.faults.catalogue import Fault, FaultPoint, Kind

RANKS = 4
STRETCH = 20  # steps from one act to the next
ROOM = 10  # steps before an act in which spares come and go, and absent ranks come back
COMPARE_EVERY = 4
SAVE_EVERY = 2
_FIRST = 14  # steps before the first act, at least
_LAST = 12  # steps after the last act
_JITTER = 4
MOST_SPARES = 3

AT_ONE_STEP = frozenset({FaultPoint.FORWARD, FaultPoint.COLLECTIVE})
"""A rank that is lost there has given nothing to its step yet, so no rank can have committed it: it runs again."""


class Mode(enum.StrEnum):
    DDP = "ddp"  # every rank can be done without
    HSDP = "hsdp"  # two replicas of two shards: either can be done without
    FSDP = "fsdp"  # no rank has a twin; states are in peer memory


class Happening(enum.StrEnum):
    KILL = "kill"
    STOP = "stop"
    SPIN = "spin"
    HOLD_GIL = "hold-gil"
    ERROR = "error"
    PAIR = "two at once"
    IN_RECOVERY = "in a recovery"  # a rank is killed, and another one while that is made good
    JOINER = "the joiner"  # a rank is killed, and then its replacement
    POISON = "poison"  # a rank can take part in no new world, and one is needed
    FLIP = "flip"
    NOTHING = "nothing"  # only spares come and go


_DECK = (*Happening, Happening.KILL, Happening.PAIR, Happening.IN_RECOVERY)
_ALONE = {
    Happening.KILL: Kind.KILL,
    Happening.STOP: Kind.STOP,
    Happening.SPIN: Kind.SPIN,
    Happening.HOLD_GIL: Kind.HOLD_GIL,
    Happening.ERROR: Kind.ERROR,
}
_IN_STEP = (
    FaultPoint.FORWARD,
    FaultPoint.COLLECTIVE,
    FaultPoint.BEFORE_FENCE,
    FaultPoint.IN_OPTIMIZER,
    FaultPoint.AFTER_OPTIMIZER,
)
_OF_SURVIVORS = (FaultPoint.STOP, FaultPoint.REGROUP, FaultPoint.TRANSFER, FaultPoint.RESUME)
_OF_JOINERS = (FaultPoint.REHEARSE, FaultPoint.REGROUP, FaultPoint.TRANSFER, FaultPoint.RESUME)
_OF_FLIPS = (FaultPoint.FORWARD, FaultPoint.BEFORE_FENCE, FaultPoint.AFTER_OPTIMIZER, FaultPoint.BETWEEN_STEPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """`spares`: numbers that are asked for one right after the other, `ROOM` steps before `step`; none: as before.
    `offered`: how many spares are warm when the faults strike. `present`: the ranks that train before and after it.
    `step_is_known`: the step at which the world resumes follows from the schedule."""

    number: int
    happening: Happening
    step: int
    faults: tuple[Fault, ...]
    spares: tuple[int, ...]
    offered: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    step_is_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One run. `spares`: at its start."""

    seed: str
    mode: Mode
    steps: int
    spares: int
    acts: tuple[Act, ...]

    @property
    def faults(self) -> tuple[Fault, ...]:
        return tuple(fault for act in self.acts for fault in act.faults)

    @property
    def may_degrade(self) -> bool:
        """Some of its steps are done without some ranks."""
        return any(len(ranks) < RANKS for act in self.acts for ranks in (act.before, act.after))

    @property
    def check_replicas_every(self) -> int:
        return 0 if self.mode is Mode.FSDP else COMPARE_EVERY

    @property
    def peer_snapshot_every(self) -> int:
        return SAVE_EVERY if self.mode is Mode.FSDP else 0


def steps_for(acts: int) -> int:
    """As many for every schedule of so many acts: then one run without faults is the reference of all."""
    return _FIRST + STRETCH * (acts - 1) + _JITTER + _LAST


def draw(
    seed: str,
    mode: Mode,
    acts: int,
    happenings: Sequence[Happening] = _DECK,
    most_spares: int = MOST_SPARES,
    spares: int | None = None,
) -> Schedule:
    """The same arguments give the same schedule. `happenings`: what is dealt out. `spares`: at the start, if not drawn
    too."""
    author = _Author(Random(f"chaos {mode} {seed}"), mode, tuple(happenings), most_spares)
    if spares is not None:
        author.spares, author.ever_offered = spares, spares > 0
    return Schedule(
        seed=seed,
        mode=mode,
        steps=steps_for(acts),
        spares=author.spares,
        acts=tuple(author.write(number) for number in range(acts)),
    )


@dataclass(slots=True)
class _Author:
    """Writes act after act. Knows which ranks are there, and whether there were spares yet: until then a lost rank is
    absent, and from then on there is a spare for it."""

    chance: Random
    mode: Mode
    happenings: tuple[Happening, ...]
    most_spares: int
    poison_left: int = 1  # all processes begin anew then, and a job has few of these (--max-restarts-from-memory)
    deck: list[Happening] = field(default_factory=list)
    spares: int = 0
    ever_offered: bool = False
    present: frozenset[int] = frozenset(range(RANKS))

    def __post_init__(self) -> None:
        few = (1,) if self.mode is Mode.FSDP else (0, 0, 1)
        self.spares = self.chance.choice((*few, self.most_spares))
        self.ever_offered = self.spares > 0

    def write(self, number: int) -> Act:
        happening = self._deal()
        spares = self._change_spares(happening)
        if spares:
            self.spares = spares[-1]
            self.ever_offered |= any(spares)
            self.present = frozenset(range(RANKS)) if self.ever_offered else self.present
        happening = self._fitting(happening)
        before, step = self.present, _FIRST + STRETCH * number + self.chance.randrange(_JITTER)
        faults = self._faults(number, happening, step)
        self._lose(happening, faults)
        struck = [fault for fault in faults if fault.step is not None and fault.kind is not Kind.POISON]
        known = happening is not Happening.FLIP and all(fault.place in AT_ONE_STEP for fault in struck)
        return Act(
            number=number,
            happening=happening,
            step=step,
            faults=faults,
            spares=spares,
            offered=self.spares,
            before=tuple(sorted(before)),
            after=tuple(sorted(self.present)),
            step_is_known=known,
        )

    # -- what happens -------------------------------------------------------------------------------------------------

    def _deal(self) -> Happening:
        if not self.deck:
            self.deck = list(self.happenings)
            self.chance.shuffle(self.deck)
        return self.deck.pop()

    def _change_spares(self, happening: Happening) -> tuple[int, ...]:
        wanted = happening is Happening.NOTHING or self.chance.random() < 0.4
        if self._one_more_loss_would_be_the_end():
            return (self.chance.randint(1, self.most_spares),)
        if not wanted:
            return ()
        last = self.chance.choice([number for number in range(self.most_spares + 1) if number != self.spares])
        come_and_go = self.chance.random() < 0.25 and self.most_spares > 1
        return (self.most_spares, 0, last) if come_and_go else (last,)

    def _one_more_loss_would_be_the_end(self) -> bool:
        if self.ever_offered:
            return False
        return len(self.present) == 1 if self.mode is Mode.DDP else len(self.present) < RANKS

    def _fitting(self, happening: Happening) -> Happening:
        """Another one where this cannot be, or would rightly end the job."""
        whole = len(self.present) == RANKS
        match happening:
            case Happening.PAIR | Happening.IN_RECOVERY if not self.ever_offered:
                enough = self.mode is Mode.DDP and len(self.present) > 2
                return happening if enough else Happening.KILL
            case Happening.JOINER if not self.ever_offered:
                return Happening.KILL
            case Happening.POISON if not self.poison_left or not whole:
                return Happening.STOP
            case Happening.FLIP if not whole or self.mode is Mode.FSDP:
                return Happening.ERROR
        return happening

    # -- faults -------------------------------------------------------------------------------------------------------

    def _faults(self, number: int, happening: Happening, step: int) -> tuple[Fault, ...]:
        first, second = self._two_ranks()
        name = f"{number}-{happening.name.lower()}"
        kill = Fault(name=f"{name}-first", kind=Kind.KILL, rank=first, place=FaultPoint.FORWARD, step=step)
        match happening:
            case Happening.NOTHING:
                return ()
            case Happening.PAIR:
                kind = self.chance.choice((Kind.KILL, Kind.KILL, Kind.ERROR, Kind.STOP))
                other = Fault(name=f"{name}-second", kind=kind, rank=second, place=FaultPoint.FORWARD, step=step)
                return (kill, other)
            case Happening.IN_RECOVERY:
                place = self.chance.choice(_OF_SURVIVORS)
                return (kill, Fault(name=f"{name}-{place}", kind=Kind.KILL, rank=second, place=place, after=kill.name))
            case Happening.JOINER:
                place = self.chance.choice(_OF_JOINERS)
                joiner = Fault(
                    name=f"{name}-{place}", kind=Kind.KILL, rank=first, place=place, joiner=True, after=kill.name
                )
                return (kill, joiner)
            case Happening.POISON:
                self.poison_left -= 1
                before = Fault(
                    name=f"{name}-poison", kind=Kind.POISON, rank=second, place=FaultPoint.FORWARD, step=step - 2
                )
                return (before, kill)
            case Happening.FLIP:
                place = self.chance.choice(_OF_FLIPS)
                return (Fault(name=name, kind=Kind.FLIP, rank=first, place=place, step=step),)
        kind = _ALONE[happening]
        return (Fault(name=name, kind=kind, rank=first, place=self._place_for(kind), step=step),)

    def _two_ranks(self) -> tuple[int, int]:
        """Twins of the 2x2 mesh (0 and 2, 1 and 3) are not lost together: no rank would hold their shard."""
        first = self.chance.choice(sorted(self.present))
        others = [rank for rank in sorted(self.present) if rank != first]
        if self.mode is Mode.HSDP:
            others = [rank for rank in others if (rank - first) % 2]
        return first, self.chance.choice(others) if others else first

    def _place_for(self, kind: Kind) -> FaultPoint:
        """A thread strikes in a collective, where raising or spinning would do no harm; and a late peer has to keep
        the victim there, which may be absent. No hangs between steps: there the job waits at the gates, and is given
        all the time that it wants."""
        places = [*_IN_STEP, FaultPoint.BETWEEN_STEPS] if kind is Kind.KILL else [*_IN_STEP]
        if kind in (Kind.SPIN, Kind.ERROR) or len(self.present) < RANKS:
            places.remove(FaultPoint.COLLECTIVE)
        return self.chance.choice(places)

    def _lose(self, happening: Happening, faults: Sequence[Fault]) -> None:
        """The ranks that are absent afterwards. When all processes begin anew none is."""
        found_and_ended = (
            happening is not Happening.FLIP or self.mode is Mode.DDP
        )  # of two twins the odd one is unknown
        if self.ever_offered or not found_and_ended:
            return
        if happening is Happening.POISON:
            self.present = frozenset(range(RANKS))
            return
        lost = frozenset(fault.rank for fault in faults)
        if self.mode is Mode.HSDP:
            lost = frozenset(rank for rank in range(RANKS) if any(rank // 2 == gone // 2 for gone in lost))
        self.present -= lost
