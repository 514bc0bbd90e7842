"""What a loop carries: taken and put back, and left to a replacement."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from understudy.errors import ProtectError
from understudy.state.rank_local_files import RankLocalFiles
from understudy.training.loop_state import Fields, LoopState, Mark, packed


def state_in(folder: Path, note: Any = print, elsewhere: bool = False) -> LoopState:
    return LoopState(RankLocalFiles(str(folder), 1, 0, "loop"), note, elsewhere)


def test_plain_attributes_are_carried_and_others_are_left_alone() -> None:
    loop = SimpleNamespace(steps=3, losses=[0.5], model=torch.nn.Linear(1, 1), total=torch.tensor(2.0))
    state = LoopState()
    state.carry("loop", loop)
    taken, total, model = state.take(), loop.total, loop.model
    loop.steps, loop.model = 9, None
    loop.losses.append(1.0)
    total += 1
    state.put(taken)
    assert loop.steps == 3 and loop.losses == [0.5] and loop.model is None and model is not None
    assert loop.total is total and total.item() == 2.0, "others may have been given the tensor"


def test_named_fields_may_come_into_being_later() -> None:
    thing = SimpleNamespace()
    fields = Fields(thing, "count")
    assert fields.state_dict() == {}
    thing.count = 1
    assert fields.state_dict() == {"count": 1}


def test_fields_are_what_is_plain_when_they_are_asked_for() -> None:
    thing = SimpleNamespace(bar=None, names={"a": 1}, counts=Counter("a"))
    fields, names = Fields(thing), thing.names
    taken = fields.state_dict()
    assert taken == {"bar": None, "names": {"a": 1}, "counts": {"a": 1}}
    thing.bar, thing.late = object(), 3  # as a progress bar is made when training begins
    assert fields.state_dict() == {"names": {"a": 1}, "counts": {"a": 1}, "late": 3}
    fields.load_state_dict({"names": {"b": 2}, "counts": {"b": 2}})
    assert thing.names is names and names == {"b": 2} and thing.counts["none"] == 0, "of their own kind"


def test_fields_of_a_module_are_those_of_its_author() -> None:
    module: Any = torch.nn.Linear(1, 1)
    module.losses, module._hidden = [], 1
    assert Fields(module).state_dict() == {"in_features": 1, "out_features": 1, "losses": []}


def test_a_name_is_carried_once() -> None:
    state = LoopState()
    state.carry("loop", SimpleNamespace(a=1))
    with pytest.raises(ProtectError, match="loop is carried already"):
        state.carry("loop", SimpleNamespace(a=1))


def test_a_replacement_finds_what_was_written_down(tmp_path: Path) -> None:
    loop = SimpleNamespace(steps=3)
    state = state_in(tmp_path)
    state.carry("loop", loop)
    state.begin(7, state.take())
    assert state.record is not None
    state.record.parts.append(Mark(state.take(), packed(0.25)))
    state.write()
    loop.steps = 4
    state.section_ends("evaluate", {"loss": 0.5})
    state.begin(8, state.take())

    other = SimpleNamespace(steps=0)
    joiner = state_in(tmp_path)
    joiner.carry("loop", other)
    record, newer = joiner.find(7), joiner.find(8)
    assert record is not None and newer is not None and joiner.find(6) is None and joiner.find(9) is None
    joiner.put(record.begun)
    assert other.steps == 3 and record.parts[0].value == packed(0.25)
    joiner.record = record
    joiner.pass_section(0)
    assert other.steps == 4 and record.sections[0].name == "evaluate"
    joiner.forget_sections_from(0)
    assert record.sections == [] and not newer.parts


def test_on_another_host_it_takes_a_donors(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    donor, joiner = state_in(tmp_path / "a", elsewhere=True), state_in(tmp_path / "b")
    donor.begin(7, donor.take())
    joiner.load_state_dict(donor.state_dict())
    assert joiner.find(7) == donor.record and joiner.find(6) is None


def test_trouble_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    state = state_in(tmp_path / "gone", said.append)
    state.begin(0, state.take())
    state.begin(1, state.take())
    assert len(said) == 1 and "its replacement has none of it" in said[0]


def test_what_is_large_or_not_plain_is_not_written_down() -> None:
    assert packed(object()) is None and packed(torch.zeros(1 << 20)) is None and packed("x" * (1 << 20)) is None
    assert packed(None) is not None and packed(torch.ones(2, requires_grad=True)) is not None
