"""Whoever reads a tensor, or draws random numbers, asks the device in use; on the CPU nobody is asked."""

from collections.abc import Sequence

import pytest
import torch

from understudy.devices import in_use
from understudy.devices.cpu import Cpu
from understudy.state import digests
from understudy.state.protected_state import Protected
from understudy.training import rng


class Late(Cpu):
    name, asynchronous = "late", True

    def __init__(self) -> None:
        self.drawn = torch.zeros(1, dtype=torch.uint8)

    def seed(self, value: int) -> None:
        self.drawn = torch.tensor([value % 256], dtype=torch.uint8)

    def random_streams(self) -> list[torch.Tensor]:
        return [self.drawn.clone()]

    def set_random_streams(self, streams: Sequence[torch.Tensor]) -> None:
        self.drawn = streams[0]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Late:
    monkeypatch.setattr(in_use, "_devices", ())
    monkeypatch.setattr(in_use, "_settle", None)
    device = Late()
    in_use.begin(device)
    return device


def test_the_cpu_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_use, "_devices", ())
    in_use.begin(Cpu())
    assert in_use.devices() == ()


def test_its_streams_are_seeded_captured_and_put_back(late: Late) -> None:
    rng.seed_all(5)
    kept, digest = rng.capture_streams(), digests.digest_rng()
    late.seed(6)
    assert digests.digest_rng() != digest
    rng.restore_streams(kept)
    assert late.drawn.item() == 5 and digests.digest_rng() == digest


def test_streams_of_a_process_that_had_no_such_device_are_taken(late: Late) -> None:
    late.seed(9)
    kept = {name: value for name, value in rng.capture_streams().items() if name != "late"}
    rng.restore_streams(kept)
    assert late.drawn.item() == 9


@pytest.mark.usefixtures("late")
def test_nothing_is_read_before_the_device_has_settled() -> None:
    asked: list[int] = []
    in_use.settle_by(lambda: asked.append(1))
    digests.tensor_bytes(torch.ones(3))
    assert len(asked) == 1
    Protected().inventory()
    assert len(asked) == 2
