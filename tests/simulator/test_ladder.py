"""Worlds without twins: peer memory holds every promise under faults of all kinds, and a forgotten copy is found."""

from collections import Counter

from understudy.simulator.explorer import explore
from understudy.simulator.ladder_scenarios import play_degraded, play_with_peer_memory
from understudy.simulator.script import Script


def test_seeded_runs_go_on_from_peer_memory() -> None:
    kinds = Counter(play_with_peer_memory(seed).kind for seed in range(150))
    assert kinds["succeeded"] > 130
    assert not kinds.keys() - {"succeeded", "lost after release", "no spares allowed"}


def test_seeded_runs_go_on_without_spares_and_are_whole_when_there_are_some() -> None:
    kinds = Counter(play_degraded(seed).kind for seed in range(100))
    assert kinds["succeeded"] > 90
    assert not kinds.keys() - {"succeeded", "lost after release", "no spares allowed", "no live twin"}


def test_one_kill_anywhere_in_a_world_without_twins() -> None:
    script = Script(world_size=3, steps=3, fenced=True, shards=3, save_every=1)
    found = explore(script, faults=1, limit=60_000)
    assert found.endings.keys() <= {"succeeded", "lost after release"}


def test_copies_every_second_step() -> None:
    script = Script(world_size=2, steps=4, fenced=True, shards=2, save_every=2)
    found = explore(script, faults=1)
    assert found.endings.keys() == {"succeeded", "lost after release"}
