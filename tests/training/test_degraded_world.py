"""A world without some of its ranks computes the gradient of the whole one, and uses every sample once."""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.training.degraded_play import CASES, Case

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-12  # float64


@functools.cache
def play(name: str) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.training.degraded_play", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])[name]
    return found


@pytest.fixture(params=CASES)
def told(request: pytest.FixtureRequest) -> tuple[Case, dict[int, dict[str, Any]], Any]:
    case, played = CASES[request.param], play(request.param)
    ranks = {int(rank): found for rank, found in played["ranks"].items()}
    assert len(ranks) == case.ranks and not any("error" in found for found in ranks.values()), ranks
    return case, ranks, played["proof"]


Told = tuple[Case, dict[int, dict[str, Any]], Any]


def test_gradients_and_parameters_are_those_of_the_whole_world(told: Told) -> None:
    case, ranks, _ = told
    for rank, found in ranks.items():
        steps = 4 if rank in case.absent else 6
        assert len(found["differences"]) == 2 * steps
        assert max(found["differences"]) < TOLERANCE


def test_the_world_is_whole_again_to_the_last_bit(told: Told) -> None:
    _, ranks, _ = told
    assert all(found["bits"] is True and found["whole again"] is True for found in ranks.values())


def test_every_sample_was_used_once(told: Told) -> None:
    _, _, (holds, degraded, sentence) = told
    assert holds and degraded == [2, 3], sentence


def test_everybody_runs_equally_many_parts_and_the_schedule_moves_once_per_step(told: Told) -> None:
    case, ranks, _ = told
    present = {rank: found for rank, found in ranks.items() if rank not in case.absent}
    assert len({tuple(found["bodies"]) for found in present.values()}) == 1
    for found in present.values():
        assert found["scheduled"] == 6 and found["objection"] is None
        whole, parts = [found["bodies"][step] for step in (0, 1, 4, 5)], found["bodies"][2:4]
        assert whole == [1, 1, 1, 1] and parts[0] == parts[1] > 1


def test_torch_numbers_the_ranks_that_are_left_without_gaps(told: Told) -> None:
    case, ranks, _ = told
    present = [rank for rank in ranks if rank not in case.absent]
    for rank in present:
        names, everybody, last = ranks[rank]["names"]
        assert everybody == sorted(present) and last == len(present) - 1
        assert [sorted(present).index(rank), len(present)] == names[0]
        if case.shards:
            replicas = len(present) // case.shards
            assert sorted(size for _, size in names[1:]) == sorted([replicas, case.shards])
