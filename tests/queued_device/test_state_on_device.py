"""State on the device: digests are reckoned by the queue and equal those of a CPU; copies are made by the queue too."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from understudy.devices import in_use
from understudy.devices.memory import in_host_memory, on_device
from understudy.state import word_sums
from understudy.state.peer_memory.snapshots import Snapshots, bring_back
from understudy.state.protected_state import Protected
from understudy.state.state_digests import BY_WORD_SUMS, BY_XXH3, digests_of, ledger_digests
from understudy_testkit.conformance import devices
from understudy_testkit.queued_device.device import QueuedDevice
from understudy_testkit.queued_device.installing import installed, uninstall
from understudy_testkit.queued_device.plugins import EmulatedDevice


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueuedDevice]:
    monkeypatch.setattr(in_use, "_devices", ())
    monkeypatch.setattr(in_use, "_settle", None)
    kind = EmulatedDevice()
    kind.take(0)
    in_use.begin(kind)
    in_use.settle_by(lambda: kind.drain(None))
    yield installed()
    uninstall()


def trained(steps: int = 3) -> Protected:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(60, 70), nn.Linear(70, 3).bfloat16(), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model[0].parameters(), fused=True)
    for _ in range(steps):
        model[0](torch.randn(4, 60)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return Protected({"model": model}, {"optimizer": optimizer}, digests=BY_WORD_SUMS)


def digests(protected: Protected) -> tuple[str | None, ...]:
    holdings = tuple(map(str, protected.holdings().values()))
    return (protected.digest_parameters(), protected.digest_optimizer(), protected.digest_extras(), *holdings)


@pytest.mark.usefixtures("device")
def test_they_are_those_of_a_cpu_to_the_last_bit() -> None:
    on_it = trained()
    assert all(on_device(tensor) and not in_host_memory(tensor) for tensor in on_it.inventory().tensors.values())
    told = digests(on_it)
    with torch.utils._python_dispatch._disable_current_modes():
        beside = trained()
        assert not any(on_device(tensor) for tensor in beside.inventory().tensors.values())
        assert digests(beside) == told
    assert all(text is None or text.startswith("sums:") for text in told[:3])


def test_they_are_reckoned_behind_what_is_queued(device: QueuedDevice) -> None:
    tensor, ones = torch.zeros(1000), torch.ones(1000)
    expected = device.fetch(word_sums._sums([ones]))
    with device.held():
        tensor += 1
        queued = device.stream.behind
        sums = word_sums._sums([tensor])
        assert device.stream.behind > queued + 3, "the host has added something up"
    with torch.utils._python_dispatch._disable_current_modes():
        assert torch.equal(device.fetch(sums), expected)


def test_tensors_of_the_host_are_digested_in_their_own_memory(device: QueuedDevice) -> None:
    numbers = torch.arange(100)
    of_host = device.fetch(numbers)
    assert not on_device(of_host) and on_device(numbers)
    first, second, third = BY_WORD_SUMS.each([of_host, numbers, of_host[1:]])
    assert first == second != third


def test_which_way_follows_from_the_device_unless_the_ledger_wants_another() -> None:
    assert digests_of(EmulatedDevice()) is BY_WORD_SUMS
    assert ledger_digests("auto", EmulatedDevice()) is BY_WORD_SUMS
    assert ledger_digests("xxh3", EmulatedDevice()) is BY_XXH3


def test_a_copy_for_peer_memory_is_made_behind_what_is_queued(device: QueuedDevice, tmp_path: Path) -> None:
    protected = trained()
    snapshots = Snapshots(str(tmp_path), 1, 0, every=1, device=EmulatedDevice())
    with device.held():
        with torch.no_grad():
            protected.modules["model"][0].weight.add_(1.0)  # type: ignore[index]
        snapshots.begin(protected, 3)
        assert [slot.step() for slot in snapshots.slots] == [None] * len(snapshots.slots)
    assert snapshots.finish() is None
    copy = snapshots.read(3)
    assert copy.of_device == set(copy.tensors) and not any(map(on_device, copy.tensors.values()))
    assert BY_WORD_SUMS.together(copy.tensors.items()) == BY_WORD_SUMS.together(protected.inventory().tensors.items())


@pytest.mark.usefixtures("device")
def test_the_device_keeps_its_contract() -> None:
    devices.check(EmulatedDevice)


@pytest.mark.usefixtures("device")
def test_a_copy_is_brought_back_to_the_device_what_is_new_there_too(tmp_path: Path) -> None:
    protected, fresh = trained(), trained(steps=0)
    snapshots = Snapshots(str(tmp_path), 1, 0, every=1, device=EmulatedDevice())
    for step in (1, 2, 3, 4):  # slots are written again, into memory that is mapped already
        snapshots.begin(protected, step)
        assert snapshots.finish() is None
    bring_back(fresh, snapshots.read(4))
    assert digests(fresh) == digests(protected)
    assert all(on_device(tensor) for tensor in fresh.inventory().tensors.values())
    snapshots.remove()
    assert not list(tmp_path.iterdir())
