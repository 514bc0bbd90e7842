"""What `devices.cuda` decides, with stand-ins for torch's functions: there was no GPU."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from understudy.devices.cuda import Cuda
from understudy.errors import DeviceLost
from understudy_testkit.conformance import devices
from understudy_testkit.conformance.rule import NotTried


class Driver:
    """What torch.cuda would do."""

    def __init__(self) -> None:
        self.current: torch.device | None = None
        self.complete = False
        self.trouble: Exception | None = None
        self.stuck = threading.Event()
        self.stuck.set()

    def set_device(self, device: torch.device) -> None:
        self.current = device

    def synchronize(self, _device: torch.device) -> None:
        self.stuck.wait(20)
        if self.trouble is not None:
            raise self.trouble

    def query(self) -> bool:
        if self.trouble is not None:
            raise self.trouble
        return self.complete


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(torch.cuda, "set_device", driver.set_device)
    monkeypatch.setattr(torch.cuda, "synchronize", driver.synchronize)
    event: Any = SimpleNamespace(record=int, query=driver.query)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    return driver


def test_the_device_of_a_rank_is_made_current(driver: Driver) -> None:
    assert Cuda().take(3) == torch.device("cuda", 3) == driver.current


def test_an_event_is_only_asked(driver: Driver) -> None:
    event = Cuda().record()
    assert not event.complete()
    driver.complete = True
    assert event.complete()


def test_a_fatal_error_of_the_context_is_the_end_of_the_device(driver: Driver) -> None:
    device, event = Cuda(), Cuda().record()
    driver.trouble = torch.AcceleratorError("an illegal memory access was encountered")
    assert device.is_lost(driver.trouble)
    for asked in (event.complete, lambda: device.drain(5.0), lambda: device.drain(None)):
        with pytest.raises(DeviceLost, match="illegal memory access"):
            asked()
    for harmless in (RuntimeError("Connection closed"), torch.OutOfMemoryError("no memory is left")):
        assert not device.is_lost(harmless)


def test_an_error_that_is_not_the_devices_own_stays_what_it_is(driver: Driver) -> None:
    event = Cuda().record()
    driver.trouble = RuntimeError("something else")
    with pytest.raises(RuntimeError, match="something else"):
        event.complete()


def test_a_queue_that_does_not_come_to_rest_is_given_up(driver: Driver) -> None:
    driver.stuck.clear()
    with pytest.raises(DeviceLost, match=r"its queue did not come to rest within 0\.05 s"):
        Cuda().drain(0.05)
    driver.stuck.set()
    Cuda().drain(20.0)


def test_memory_of_the_host_is_not_its_own() -> None:
    assert not Cuda().holds(torch.ones(1))
    assert not Cuda().holds(torch.ones(1, device="meta"))


@pytest.mark.parametrize("error", [0, 2])
def test_memory_is_pinned_once_and_released_only_if_it_was(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    asked: list[str] = []

    def register(*_: int) -> int:
        asked.append("register")
        return error

    driver = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=lambda _: asked.append("release"))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    device, memory = Cuda(), torch.zeros(8)
    with pytest.warns(UserWarning, match="will be slow") if error else nullcontext():
        device.pin(memory)
    device.unpin(memory)
    assert asked == (["register"] if error else ["register", "release"])


def test_a_device_that_processes_share_is_refused() -> None:
    assert Cuda().objection({}) is None
    assert "MPS" in str(Cuda().objection({"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"}))


def test_its_random_streams_are_left_alone_until_it_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    Cuda().seed(1)
    assert Cuda().random_streams() == [] and seeds == []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    Cuda().seed(2)
    assert seeds == [2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_one_the_suite_says_that_it_was_not_tried() -> None:
    with pytest.raises(NotTried, match="there is no device cuda"):
        devices.check(Cuda)
