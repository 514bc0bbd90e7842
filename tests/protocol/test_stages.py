"""The stages: the table is what the code goes by, what the documents show, and all of it is used."""

from pathlib import Path

import pytest

from understudy.protocol import round as round_module
from understudy.protocol.stages import TRANSITIONS, Stage, Trigger, as_table, next_stage
from understudy_testkit.simulator.active_scenarios import play_with_moves
from understudy_testkit.simulator.cluster_scenarios import play_on_cluster
from understudy_testkit.simulator.scenarios import play

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_the_document_shows_the_table() -> None:
    assert as_table() in DOCUMENT.read_text()


def test_what_is_not_in_the_table_cannot_happen() -> None:
    with pytest.raises(AssertionError, match="VERDICT in stage TRAINING"):
        next_stage(Stage.TRAINING, Trigger.VERDICT)


def test_every_transition_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = set()

    def watched(stage: Stage, trigger: Trigger) -> Stage:
        taken.add((stage, trigger))
        return next_stage(stage, trigger)

    monkeypatch.setattr(round_module, "next_stage", watched)
    for game in (play, play_on_cluster, play_with_moves):
        for seed in range(40):
            game(seed)
            if taken == TRANSITIONS.keys():
                return
    assert taken == TRANSITIONS.keys()
