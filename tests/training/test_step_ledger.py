"""What one member writes down of its steps."""

from pathlib import Path

import torch
from tests.ledger.made_up import WrittenAtOnce, write_run
from torch import nn

from understudy.foundation.ids import Generation
from understudy.ledger.reading import read_run
from understudy.ledger.records import StepRecord
from understudy.ledger.writing import RecordLog, steps_file
from understudy.state.protected_state import Protected
from understudy.training.step_ledger import StepLedger

STATISTICS = frozenset({"parameters/model/1.running_mean", "parameters/model/1.running_var"})


def normed(mean: float) -> Protected:
    """A model whose batch-norm statistics are this rank's own."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].running_mean.fill_(mean)  # type: ignore[operator]
    return Protected(modules={"model": model})


def test_rank_local_buffers_have_a_digest_of_their_own() -> None:
    one, two = normed(1.0), normed(2.0)
    assert one.digest_parameters() != two.digest_parameters()
    assert one.digest_parameters(STATISTICS) == two.digest_parameters(STATISTICS)
    assert one.digest_buffers(STATISTICS) != two.digest_buffers(STATISTICS)
    assert one.digest_buffers(STATISTICS) == normed(1.0).digest_buffers(STATISTICS)


def test_without_rank_local_buffers_nothing_changes() -> None:
    protected = normed(1.0)
    assert protected.digest_parameters(()) == protected.digest_parameters()
    assert protected.digest_buffers(()) is None
    assert protected.digest_buffers({"parameters/other/running_mean"}) is None, "of another stage of a pipeline"


def recorded(folder: Path, rank_local: frozenset[str]) -> tuple[StepRecord, StepRecord]:
    """A step that was committed, and one that was inherited."""
    write_run(folder, [])
    lines = RecordLog(WrittenAtOnce(steps_file(folder / "ledger", "m-1")))
    ledger = StepLedger(lines, "m-1", 1, 2, digest_every=1)
    ledger.rank_local = rank_local
    ledger.committed(normed(1.0), Generation(1), 0, 0)
    ledger.inherited(normed(1.0), Generation(1), 1)
    steps = read_run(folder).steps
    return steps[(0, 1)], steps[(1, 1)]


def test_an_heir_does_not_know_the_buffers_that_only_the_dead_had(tmp_path: Path) -> None:
    committed, inherited = recorded(tmp_path, STATISTICS)
    assert committed.buffers == normed(1.0).digest_buffers(STATISTICS) and inherited.buffers is None
    assert committed.parameters == inherited.parameters == normed(7.0).digest_parameters(STATISTICS)


def test_a_model_without_such_buffers_has_no_digest_of_them(tmp_path: Path) -> None:
    committed, inherited = recorded(tmp_path, frozenset())
    assert committed.buffers is None and inherited.buffers is None
    assert committed.parameters == normed(1.0).digest_parameters()


def test_a_save_function_that_finds_no_room_costs_digests_and_nothing_else(tmp_path: Path) -> None:
    def save(_path: Path) -> None:
        raise OSError(28, "No space left on device")

    said: list[str] = []
    write_run(tmp_path, [])
    lines = RecordLog(WrittenAtOnce(steps_file(tmp_path / "ledger", "m-1")))
    ledger = StepLedger(lines, "m-1", 1, 2, digest_every=1, note=said.append)
    for step in range(2):
        ledger.committed(Protected(save=save, load=save), Generation(1), step, 0)
    assert len(said) == 1 and "save= failed" in said[0]
    assert read_run(tmp_path).steps[(1, 1)].parameters is None
