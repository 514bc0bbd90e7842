"""Moves, drained hosts and flipped bits among faults: every invariant holds, and the job ends."""

from random import Random

import pytest

from understudy.foundation.ids import Rank
from understudy.protocol.commands import DecisionKind, Outcome, RecordDecision
from understudy.protocol.policy import Policy
from understudy.protocol.requests import MoveRanks
from understudy_testkit.simulator.active_scenarios import (
    play_with_drains,
    play_with_flips,
    play_with_moves,
    play_with_undrains,
)
from understudy_testkit.simulator.campaign import play_range
from understudy_testkit.simulator.explorer import explore
from understudy_testkit.simulator.faults import Fault, FaultKind, Moment
from understudy_testkit.simulator.script import Script
from understudy_testkit.simulator.simulation import Simulation


def run(
    *faults: Fault, shards: int = 1, moves: tuple[int, ...] = (), check_replicas_every: int = 0, seed: int = 1
) -> Simulation:
    simulation = Simulation(
        Script(world_size=4, steps=40, fenced=True, shards=shards, check_replicas_every=check_replicas_every),
        Policy(world_size=4, spares=1),
        chance=Random(seed),
        faults=faults,
        requests=[MoveRanks(at=6.0, ranks=tuple(Rank(rank) for rank in moves), reason="asked")] if moves else [],
    )
    simulation.run()
    assert simulation.outcome is not None and simulation.outcome.outcome is Outcome.SUCCEEDED
    return simulation


def decided(simulation: Simulation, kind: DecisionKind) -> list[RecordDecision]:
    return [entry for entry in simulation.story if isinstance(entry, RecordDecision) and entry.kind is kind]


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_a_rank_moves_even_if_nobody_else_holds_its_state(shards: int) -> None:
    simulation = run(shards=shards, moves=(2,))
    assert simulation.machine.generation == 2
    assert len(decided(simulation, DecisionKind.MOVE)) == 1


@pytest.mark.parametrize(
    "moment", [Moment.REHEARSE, Moment.PREPARED, Moment.GIVING, Moment.TRANSFER], ids=lambda moment: moment.value
)
def test_a_move_survives_the_death_of_whoever_takes_part(moment: Moment) -> None:
    simulation = run(Fault(kind=FaultKind.KILL, moment=moment), shards=2, moves=(2,))
    assert sum(simulation.fired.values()) == 1


@pytest.mark.parametrize("shards", [1, 2], ids=["three against one", "two who differ"])
def test_a_flipped_bit_is_found_and_undone(shards: int) -> None:
    flip = Fault(kind=FaultKind.FLIP, moment=Moment.COMPUTING, rank=Rank(2), step=9)
    simulation = run(flip, shards=shards, check_replicas_every=4)
    assert simulation.fired["flip"] == 1 and simulation.machine.generation == 2
    assert not any(member.corrupt for member in simulation.members.values() if member.alive)
    assert simulation.machine.replica_check.state.agreed == 40


@pytest.mark.parametrize(
    "game", [play_with_moves, play_with_drains, play_with_undrains, play_with_flips], ids=lambda game: game.__name__
)
def test_seeds(game: object) -> None:
    tally = play_range(range(60), game)  # type: ignore[arg-type]
    assert tally.violations == []
    assert tally.endings["succeeded"] > 45


@pytest.mark.parametrize("seed", [3267, 8374])
def test_a_deposed_coordinator_that_asks_for_a_step_harms_nobody(seed: int) -> None:
    assert play_with_drains(seed).kind == "succeeded"


def test_an_order_to_a_host_that_is_cut_off_for_a_moment_arrives_when_it_is_back() -> None:
    assert play_with_drains(104849).kind == "succeeded"


@pytest.mark.parametrize("seed", [2652, 10994])
def test_late_news_of_an_agreement_does_not_touch_the_copy_that_was_reported(seed: int) -> None:
    assert play_with_flips(seed).kind == "succeeded"


def test_every_order_of_a_move() -> None:
    found = explore(Script(world_size=2, steps=3, fenced=True, shards=2), faults=0, moves=1)
    assert set(found.endings) == {"succeeded"} and found.states > 1000


@pytest.mark.parametrize("seed", [2589, 4388])
def test_the_model_knows_full_places_and_spares_that_were_never_started(seed: int) -> None:
    """2589: operators' spares are not for the ranks of another host, so a job without places must stop. 4388: a spare
    that a dead coordinator had meant to start is dismissed by the next one."""
    play_with_undrains(seed)
