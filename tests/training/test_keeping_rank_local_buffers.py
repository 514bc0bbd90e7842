"""Buffers that replicas do not share: who has them, and how they come back."""

from pathlib import Path

import torch
from torch import nn

from understudy.state.protected_state import Protected
from understudy.state.rank_local_buffers import Shown, differing, digests_of, shared_buffers, some_differ, statistics_of
from understudy.state.rank_local_files import RankLocalFiles
from understudy.training.rank_local.buffers import RankLocalBuffers

STATISTICS = {"parameters/model/1.running_mean", "parameters/model/1.running_var"}
TABLE = "parameters/model/table"


def model_of(value: float, table: float = 0.0) -> Protected:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.SyncBatchNorm(2))
    model.register_buffer("table", torch.full((3,), table))
    model[1].running_mean.fill_(value)  # type: ignore[operator]
    return Protected(modules={"model": model})


def mean_of(protected: Protected) -> float:
    return float(dict(protected.parameters())["parameters/model/1.running_mean"][0])


def shown(protected: Protected, key: str = "k") -> Shown:
    return Shown(twin_key=key, statistics=bool(statistics_of(protected)), buffers=digests_of(shared_buffers(protected)))


def test_batch_norm_is_rank_local_also_where_twins_are_still_equal() -> None:
    told = {0: shown(model_of(1.0)), 1: shown(model_of(1.0))}
    assert some_differ(told.values())
    assert differing(model_of(1.0), 0, told) == STATISTICS, "and SyncBatchNorm is not"


def test_other_buffers_are_where_twins_differ() -> None:
    ours, theirs = model_of(1.0, table=1.0), model_of(1.0, table=2.0)
    assert differing(ours, 0, {0: shown(ours), 1: shown(theirs)}) == STATISTICS | {TABLE}
    assert differing(ours, 0, {0: shown(ours), 1: shown(theirs, "other")}) == STATISTICS, "of no twin"


def test_a_rank_without_own_buffers_meets_the_fence_with_those_that_have_some() -> None:
    plain = Protected(modules={"model": nn.Linear(2, 2)})
    assert not some_differ([shown(plain), shown(plain)])
    assert some_differ([shown(plain), shown(model_of(1.0), "other stage")])


def own(folder: Path, protected: Protected, notes: list[str] | None = None) -> RankLocalBuffers:
    files = RankLocalFiles(str(folder), 1, 0, "buffers")
    made = RankLocalBuffers(files, protected, ([] if notes is None else notes).append)
    made.use(STATISTICS)
    return made


def receive(protected: Protected, value: float) -> None:
    dict(protected.parameters())["parameters/model/1.running_mean"].fill_(value)


def test_a_replacement_on_the_same_host_has_what_was_kept(tmp_path: Path) -> None:
    lost = model_of(1.0)
    kept = own(tmp_path, lost)
    kept.begin(4)
    receive(lost, 2.0)  # the forward pass
    kept.arrive(4)
    for step, expected in ((4, 1.0), (5, 2.0)):
        heir = model_of(0.0)
        own_of_heir = own(tmp_path, heir)
        own_of_heir.hold()
        receive(heir, 9.0)
        own_of_heir.put_back(step)
        assert mean_of(heir) == expected


def test_a_survivor_keeps_its_own_also_when_the_transfer_takes_two_attempts(tmp_path: Path) -> None:
    protected = model_of(1.0)
    survivor = own(tmp_path, protected)
    survivor.begin(4)
    for _ in range(2):
        survivor.hold()
        receive(protected, 9.0)
    survivor.put_back(6)
    assert mean_of(protected) == 1.0


def test_a_replacement_on_another_host_goes_on_with_its_donors_and_says_so(tmp_path: Path) -> None:
    protected, notes = model_of(0.0), list[str]()
    heir = own(tmp_path, protected, notes)
    heir.hold()
    receive(protected, 9.0)
    heir.put_back(5)
    assert mean_of(protected) == 9.0
    assert len(notes) == 1 and "model.1.running_mean, model.1.running_var" in notes[0]
