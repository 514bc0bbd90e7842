"""Worlds without twins: peer memory holds every promise under faults of all kinds, and a forgotten copy is found."""

from collections import Counter
from random import Random

from understudy.foundation.ids import Rank
from understudy.protocol.commands import Outcome
from understudy.protocol.policy import Policy
from understudy.protocol.rungs import Rung
from understudy_testkit.simulator.explorer import explore
from understudy_testkit.simulator.faults import Fault, FaultKind, Moment
from understudy_testkit.simulator.ladder_scenarios import play_degraded, play_on_probation, play_with_peer_memory
from understudy_testkit.simulator.script import Script
from understudy_testkit.simulator.simulation import Simulation


def test_seeded_runs_go_on_from_peer_memory() -> None:
    kinds = Counter(play_with_peer_memory(seed).kind for seed in range(150))
    assert kinds["succeeded"] > 130
    assert not kinds.keys() - {"succeeded", "lost after release", "no spares allowed"}


def test_seeded_runs_go_on_without_spares_and_are_whole_when_there_are_some() -> None:
    kinds = Counter(play_degraded(seed).kind for seed in range(100))
    assert kinds["succeeded"] > 90
    assert not kinds.keys() - {"succeeded", "lost after release", "no spares allowed", "no live twin"}


def test_a_shard_that_only_who_sat_out_still_holds_is_lost() -> None:
    """It is far older than what the others hold: to stop is right, and the reason names who holds it."""
    assert play_degraded(7565).kind == "no live twin"


def test_one_kill_anywhere_in_a_world_without_twins() -> None:
    script = Script(world_size=3, steps=3, fenced=True, shards=3, peer_snapshot_every=1)
    found = explore(script, faults=1, limit=60_000)
    assert found.endings.keys() <= {"succeeded", "lost after release"}


def test_copies_every_second_step() -> None:
    script = Script(world_size=2, steps=4, fenced=True, shards=2, peer_snapshot_every=2)
    found = explore(script, faults=1)
    assert found.endings.keys() == {"succeeded", "lost after release"}


def test_bad_state_on_probation_leads_to_the_next_rung() -> None:
    reports = [play_on_probation(seed) for seed in range(80)]
    assert sum(report.fired.get("spoil", 0) for report in reports) > 60
    kinds = Counter(report.kind for report in reports)
    assert kinds["succeeded"] > 35
    assert not kinds.keys() - {"succeeded", "bad state and nothing below", "lost after release", "no live twin"}


def test_a_spoilt_joiner_does_not_spoil_the_run() -> None:
    faults = (
        Fault(kind=FaultKind.KILL, moment=Moment.COLLECTIVE, rank=Rank(1), step=5),
        Fault(kind=FaultKind.SPOIL, moment=Moment.RESUME, rank=Rank(1)),
    )
    script = Script(world_size=4, steps=12, fenced=True, shards=4, peer_snapshot_every=2)
    simulation = Simulation(script, Policy(world_size=4, spares=1), chance=Random(1), faults=faults)
    simulation.run()
    assert simulation.fired["spoil"] == 1 and simulation.machine.fallback.state.taken == {Rung.PEER_MEMORY: 2}
    assert not any(member.spoilt for member in simulation.members.values())
    assert simulation.outcome is not None and simulation.outcome.outcome is Outcome.SUCCEEDED
