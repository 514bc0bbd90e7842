"""Rules with a bug, to show that the simulation and the explorer would find one.

The first is in the commit rule. Every other one takes a mending of the protocol out again, and names the game that must
notice it (`SEEDED_BUGS`). Knows how to put another rule in the place of the real one for a while. Nothing else uses it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from understudy.foundation.ids import Rank
from understudy.protocol import liveness, member_loss, planning, round, watchdog
from understudy.protocol.causes import CauseKind
from understudy.protocol.commands import Command
from understudy.protocol.commit import Verdict
from understudy.protocol.crash_loop import CrashLoop
from understudy.protocol.hosts import Hosts
from understudy.protocol.liveness import Condition, Sighting
from understudy.protocol.member_loss import MemberLoss
from understudy.protocol.outbound import Outbound
from understudy.protocol.pool import SparePool
from understudy.protocol.positions import Position
from understudy.protocol.reasons import Code, because
from understudy.protocol.watchdog import Watchdog
from understudy_testkit.simulator import observing
from understudy_testkit.simulator import ordinary_scenarios as ordinary
from understudy_testkit.simulator.active_scenarios import play_with_flips, play_with_moves, play_with_undrains
from understudy_testkit.simulator.cluster_scenarios import play_on_cluster
from understudy_testkit.simulator.explorer import explore
from understudy_testkit.simulator.invariants import Violation
from understudy_testkit.simulator.ladder_scenarios import play_degraded
from understudy_testkit.simulator.member import SimulatedMember
from understudy_testkit.simulator.phases import MemberPhase
from understudy_testkit.simulator.scenarios import play
from understudy_testkit.simulator.script import Script
from understudy_testkit.simulator.simulation import Simulation

Game = Callable[[int], object]
"""Plays a seed. Raises `Violation`."""


def retry_although_applied(positions: Mapping[Rank, Position]) -> Verdict | None:
    """The seeded bug: it goes back to the oldest survivor, so a step that another has applied is lost."""
    held = [position.holds for position in positions.values() if position.holds is not None]
    if not held:
        return None
    oldest = min(held)
    return Verdict(step=oldest, committed=None, reason=because(Code.NOT_ALL_AT_FENCE, ranks=(), step=oldest))


@dataclass(frozen=True, slots=True)
class SeededBug:
    """`where`: a module or class; `name`: what of it is replaced by `wrong`. `game`: what must find it. `first`: the
    seed to begin with, where it takes many to come upon it."""

    what: str
    where: Any
    name: str
    wrong: Any
    game: Game
    seeds: int = 400
    first: int = 0


@contextmanager
def seeded(bug: SeededBug) -> Iterator[None]:
    """While this lasts, every machine goes by the wrong rule."""
    right = getattr(bug.where, bug.name)
    setattr(bug.where, bug.name, bug.wrong)
    try:
        yield
    finally:
        setattr(bug.where, bug.name, right)


def found(bug: SeededBug, seeds: Iterable[int] | None = None) -> Violation | None:
    """The first violation that seeded runs find under the wrong rule."""
    with seeded(bug):
        for seed in seeds if seeds is not None else range(bug.first, bug.first + bug.seeds):
            try:
                bug.game(seed)
            except Violation as violation:
                return violation
    return None


# -- the commit rule --------------------------------------------------------------------------------------------------

COMMIT_RULE = SeededBug(
    "a step that was applied is retried", planning, "judge", retry_although_applied, play, 2000, first=70
)


def found_by_explorer(fenced: bool) -> Violation | None:
    with seeded(COMMIT_RULE):
        try:
            explore(Script(world_size=3, steps=2, fenced=fenced), faults=1)
        except Violation as violation:
            return violation
    return None


# -- one for each mending ---------------------------------------------------------------------------------------------

_is_gone, _on_lost, _resume, _init = liveness.is_gone, MemberLoss.on_lost, SimulatedMember._resume, Simulation.__init__
_is_stuck, _room, _ranks_with_state = liveness._is_stuck, SparePool._room, Watchdog._ranks_with_state
_needed_now, _is_empty_for_good = Watchdog._needed_now, SparePool.is_empty_for_good


def _silence_is_enough(policy: Any, sighting: Any) -> bool:
    if sighting is None:
        return False
    return _is_gone(policy, replace(sighting, condition=Condition.STOPPED)) and sighting.seconds >= policy.stall_floor


def _waiting_for_word_is_stuck(policy: Any, pace: float, watched: Any) -> bool:
    sighting = watched.sighting and replace(watched.sighting, recovering=False)
    return _is_stuck(policy, pace, replace(watched, sighting=sighting))


def _where_it_stood_counts_for_ever(watch: Watchdog, _member: Any, rank: Rank) -> bool:
    position, plan = watch.round.state.positions.get(rank), watch.round.state.plan
    return position is None or (position.holds is not None and (plan is None or position.holds == plan.step))


def _without_limit(_pool: SparePool, _host: Any, _freed: Any = ()) -> int:
    return 1000


def _as_it_is_now(pool: SparePool, host: Any, _freed: Any = ()) -> int:
    return _room(pool, host)


def _none_is_on_its_way_anywhere(pool: SparePool, at: float) -> bool:
    return _is_empty_for_good(pool, at) and not pool.roster.starting


def _still_counted_as_dying(part: MemberLoss, at: float, member: Any, cause: Any) -> list[Command]:
    commands = _on_lost(part, at, member, cause)
    if member.rank is None:
        part.round.state.killed.add(member.id)
    return commands


def _finished_once_finished_for_ever(member: SimulatedMember, world: Any) -> None:
    at_the_end = member.attempt == member.script.steps - 1 and (member.holds or 0) < member.script.steps
    _resume(member, world)
    if at_the_end:
        member.state = tuple(range(member.script.steps - 1))
        member.enter(MemberPhase.FINISHED)
        member._ask_for_release(world)


def _gives_up_after_a_minute(simulation: Simulation, *args: Any, **kwargs: Any) -> None:
    _init(simulation, *args, **kwargs)
    simulation.gives_up_after = 60.0


def _always(_self: Any, _since: float) -> bool:
    return True


def _never(*_: Any) -> bool:
    return False


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _silent_hosts_hold_state(watch: Watchdog, at: float) -> list[Rank]:
    silent, watch.hosts.silent = watch.hosts.silent, {}
    try:
        return _ranks_with_state(watch, at)
    finally:
        watch.hosts.silent = silent


def _without_leavers(watch: Watchdog) -> list[Any]:
    leavers = watch.roster.leavers.values()
    return [member for member in _needed_now(watch) if member.id not in leavers]


def _all_of_it(_member: SimulatedMember, now: float, moved_at: float) -> float:
    return now - moved_at


def _all_of_the_setup(watch: Watchdog, at: float, _members: Any) -> float:
    return at - watch.round.state.opened_at


def _prolonged(sighting: Sighting, seconds: float) -> Sighting:
    return sighting if sighting.condition is Condition.MOVING else replace(sighting, seconds=sighting.seconds + seconds)


def _no_commands(*_: Any) -> list[Command]:
    return []


def _explore_evaluations(_seed: int) -> object:
    return explore(Script(world_size=2, steps=2, fenced=True, tail_every=2, tail_length=1), faults=1)


class _EveryCauseCounts:
    """In the place of `CauseKind`."""

    EXIT, DISMISSED = CauseKind.EXIT, None


SEEDED_BUGS = (
    SeededBug("A1: silence alone ends a rank", liveness, "is_gone", _silence_is_enough, ordinary.play_slow),
    SeededBug(
        "A1: the last holder of a state is ended", Watchdog, "_why_needed", _nothing, ordinary.play_slow, first=200
    ),
    SeededBug(
        "state is built upon that a debugger holds",
        watchdog,
        "UNABLE_TO_GIVE",
        liveness.UNRESPONSIVE,
        ordinary.play_slow,
        first=780,
    ),
    SeededBug(
        "time under a debugger counts as busy",
        observing,
        "_silence",
        _all_of_it,
        ordinary.play_slow,
        10,
        first=4140,
    ),
    SeededBug(
        "time under a debugger counts against the setup",
        Watchdog,
        "_counted_of_setup",
        _all_of_the_setup,
        ordinary.play_slow,
        1,
        first=12805,
    ),
    SeededBug("a stop is prolonged without a look", Sighting, "later", _prolonged, ordinary.play_slow, 1, first=8484),
    SeededBug(
        "a member that is asked for checkpoints is not told of the generation again",
        Outbound,
        "_catch_up_asked",
        _no_commands,
        ordinary.play_slow,
        1,
        first=6441,
    ),
    SeededBug(
        "a report that was lost ends a rank", liveness, "_is_stuck", _waiting_for_word_is_stuck, ordinary.play_lossy
    ),
    SeededBug(
        "a rank that was replaced once never holds a state again",
        Watchdog,
        "_has_state",
        _where_it_stood_counts_for_ever,
        ordinary.play_hang_after_recovery,
        40,
    ),
    SeededBug(
        "the place of a rank that hangs is not counted as free",
        SparePool,
        "_room",
        _as_it_is_now,
        ordinary.play_without_kept_spares,
        40,
    ),
    SeededBug(
        "A2: a rank at its last step does not run it again",
        SimulatedMember,
        "_resume",
        _finished_once_finished_for_ever,
        play_with_flips,
        first=28,
    ),
    SeededBug(
        "A3: a spare that was ended is waited for",
        MemberLoss,
        "on_lost",
        _still_counted_as_dying,
        ordinary.play_sleeping_spare,
    ),
    SeededBug(
        "A6: survivors end themselves while no coordinator is there",
        Simulation,
        "__init__",
        _gives_up_after_a_minute,
        ordinary.play_without_coordinator,
    ),
    SeededBug(
        "A10: a coordinator never suspects itself",
        Hosts,
        "_any_host_spoke_after",
        _always,
        ordinary.play_slow_on_hosts,
        first=50,
    ),
    SeededBug("A11: no failure is ever forgotten", CrashLoop, "resumed", _nothing, ordinary.play_transient_errors),
    SeededBug("A23: a transfer has a fixed deadline", watchdog, "_goes_on", _nothing, ordinary.play_slow_transfer, 40),
    SeededBug(
        "U2: a joiner does not take part in an evaluation", round, "tail_of", _nothing, ordinary.play_in_evaluations
    ),
    SeededBug(
        "a joiner is not needed in what follows a step that is committed by the verdict",
        planning,
        "_tail_to_come",
        _nothing,
        _explore_evaluations,
        1,
    ),
    SeededBug(
        "a spare that was never started counts against its host",
        member_loss,
        "CauseKind",
        _EveryCauseCounts,
        play_on_cluster,
        1,
        first=5720,
    ),
    SeededBug(
        "a rank that hands itself over is not watched",
        Watchdog,
        "_needed_now",
        _without_leavers,
        play_with_moves,
        1,
        first=12338,
    ),
    SeededBug(
        "the state of a rank on a silent host is built upon",
        Watchdog,
        "_ranks_with_state",
        _silent_hosts_hold_state,
        ordinary.play_hang_beside_silent_host,
        1,
        first=46,
    ),
    SeededBug(
        "a world that is never complete is waited for without an end",
        Watchdog,
        "_judge_gathering",
        _no_commands,
        play_on_cluster,
        1,
        first=4362,
    ),
    SeededBug(
        "a spare on its way to a drained host is waited for",
        SparePool,
        "is_empty_for_good",
        _none_is_on_its_way_anywhere,
        play_with_undrains,
        1,
        first=8714,
    ),
    SeededBug(
        "a rank that hangs keeps the place that a spare would need",
        SparePool,
        "has_spares",
        _never,
        play_degraded,
        1,
        first=4196,
    ),
    SeededBug(
        "spares that an operator adds take ranks beyond the places of their host",
        SparePool,
        "_places_left",
        _without_limit,
        play_with_undrains,
        1,
        first=368,
    ),
    SeededBug(
        "a world that stands still goes on for ever", Watchdog, "no_progress", _nothing, ordinary.play_livelock, 40
    ),
)
