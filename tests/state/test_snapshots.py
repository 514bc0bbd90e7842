"""Copies of a rank's state outlive its process; only a whole one is believed, and one is there at every moment."""

import errno
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from understudy.errors import TransferError
from understudy.state.digests import digest_tensors
from understudy.state.peer_memory.snapshots import Slot, Snapshots, bring_back
from understudy.state.protected_state import Protected


def trained(steps: int, momentum: bool = True) -> Protected:
    torch.manual_seed(steps)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    optimizer = torch.optim.AdamW(model.parameters()) if momentum else torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(steps):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return Protected(modules={"model": model}, optimizers={"optimizer": optimizer}, objects={"scheduler": scheduler})


def digest(protected: Protected) -> str:
    inventory = protected.inventory()
    return digest_tensors(inventory.tensors.items()) + inventory.plain.hex()


def save(snapshots: Snapshots, protected: Protected, step: int) -> None:
    snapshots.begin(protected, step)
    assert snapshots.finish() is None


def of_rank(folder: Path, rank: int = 0, world: int = 1, every: int = 1) -> Snapshots:
    return Snapshots(str(folder), world, rank, every)


def test_another_process_brings_the_state_back_bit_by_bit(tmp_path: Path) -> None:
    source, target = trained(3), trained(1)
    save(of_rank(tmp_path), source, 3)
    bring_back(target, of_rank(tmp_path).read(3))
    assert digest(target) == digest(source)


def test_optimizer_state_that_does_not_exist_yet_is_made(tmp_path: Path) -> None:
    source, fresh = trained(3), trained(0)
    save(of_rank(tmp_path), source, 3)
    bring_back(fresh, of_rank(tmp_path).read(3))
    assert digest(fresh) == digest(source)


def test_parameters_keep_their_place_in_memory(tmp_path: Path) -> None:
    target = trained(1)
    places = [tensor.data_ptr() for _, tensor in target.parameters()]
    save(of_rank(tmp_path), trained(2), 2)
    bring_back(target, of_rank(tmp_path).read(2))
    assert [tensor.data_ptr() for _, tensor in target.parameters()] == places


def test_the_two_newest_are_there(tmp_path: Path) -> None:
    snapshots = of_rank(tmp_path)
    for step in (1, 2, 3, 4):
        save(snapshots, trained(step), step)
        assert snapshots.steps() == ((1,) if step == 1 else (step - 1, step))


def test_the_newer_one_is_whole_while_the_older_one_is_overwritten(tmp_path: Path) -> None:
    snapshots = of_rank(tmp_path)
    save(snapshots, trained(1), 1)
    save(snapshots, trained(2), 2)
    Slot(tmp_path / "snapshot-1-0-0").clear()  # as a writer does first
    assert of_rank(tmp_path).steps() == (2,)


def test_what_a_forward_pass_changes_is_copied_at_once(tmp_path: Path) -> None:
    source, snapshots = trained(2), of_rank(tmp_path)
    before = digest(source)
    snapshots.begin(source, 2)
    source.modules["model"](torch.randn(4, 8))  # the statistics of batch norm move
    snapshots.finish()
    target = trained(1)
    bring_back(target, snapshots.read(2))
    assert digest(target) == before != digest(source)


def test_ranks_and_worlds_do_not_meet(tmp_path: Path) -> None:
    save(of_rank(tmp_path, rank=0), trained(1), 1)
    assert of_rank(tmp_path, rank=1).steps() == of_rank(tmp_path, world=2).steps() == ()


def test_damage_is_noticed(tmp_path: Path) -> None:
    save(of_rank(tmp_path), trained(2), 2)
    path = tmp_path / "snapshot-1-0-0"
    content = bytearray(path.read_bytes())
    content[4096] ^= 1  # the first byte of the first tensor
    path.write_bytes(content)
    with pytest.raises(TransferError, match="damaged"):
        of_rank(tmp_path).read(2)


@pytest.mark.parametrize("cut", [0, 10, 4000, -1])
def test_a_torn_copy_is_none(tmp_path: Path, cut: int) -> None:
    save(of_rank(tmp_path), trained(2), 2)
    path = tmp_path / "snapshot-1-0-0"
    path.write_bytes(path.read_bytes()[:cut])
    assert of_rank(tmp_path).steps() == ()


def test_later_ones_are_void_after_going_back(tmp_path: Path) -> None:
    snapshots = of_rank(tmp_path)
    save(snapshots, trained(5), 5)
    save(snapshots, trained(6), 6)
    snapshots.forget_after(5)
    assert snapshots.steps() == (5,)
    save(snapshots, trained(6), 6)
    assert snapshots.steps() == (5, 6)


def test_no_memory_is_said_and_not_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    snapshots = of_rank(tmp_path)
    save(snapshots, trained(1), 1)
    monkeypatch.setattr(os, "posix_fallocate", full)
    snapshots.begin(trained(2), 2)
    trouble = snapshots.finish()
    assert trouble is not None and "No space left" in trouble
    assert snapshots.steps() == (1,)


def test_nothing_is_due_and_nothing_remains_without_a_need(tmp_path: Path) -> None:
    snapshots = of_rank(tmp_path, every=5)
    assert [step for step in range(1, 12) if snapshots.due(step)] == [5, 10]
    save(snapshots, trained(1), 1)
    snapshots.stop()
    assert list(tmp_path.iterdir()) == [] and not snapshots.due(5)


def test_a_held_copy_stays_beside_the_two_newest(tmp_path: Path) -> None:
    snapshots = of_rank(tmp_path)
    for step in (1, 2):
        save(snapshots, trained(step), step)
    snapshots.hold(2)
    for step in (3, 4):
        save(snapshots, trained(step), step)
    assert snapshots.steps() == (1, 3, 4)
    snapshots.release()
    assert snapshots.steps() == (3, 4)
    save(snapshots, trained(5), 5)
    assert snapshots.steps() == (4, 5) and len(list(tmp_path.iterdir())) == 2
