"""What the acceptance asks of CUDA alone, with stand-ins: there is no GPU. They show that it is written down whole, and
what it makes of the answers; not that CUDA answers like this."""

from typing import Any

import pytest
import torch

from understudy.cli.examination.accelerators.verbs import VERBS, cuda
from understudy.cli.examination.accelerators.verbs.held import Held


class Event:
    """What is queued has not run until the device is synchronised."""

    ran = False

    def record(self) -> None:
        Event.ran = False

    def query(self) -> bool:
        return Event.ran


class Runtime:
    def __init__(self, error: int) -> None:
        self._error = error
        self.registered: list[int] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert address and size and flags == 0
        self.registered.append(address)
        return self._error

    def cudaHostUnregister(self, address: int) -> None:
        self.registered.remove(address)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _: None)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _=None: None)
    monkeypatch.setattr(cuda, "_BYTES", 1 << 16)
    return Held()


def test_a_word_that_arrives_as_it_was_when_it_was_queued_is_told(held: Held) -> None:
    assert cuda.pinned_word(held) == {"changed_in_time": True, "arrived": 0}  # a host copies at once


@pytest.mark.parametrize("error", [0, 801])
def test_copies_are_measured_where_memory_can_be_registered(
    held: Held, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    runtime = Runtime(error)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    told = cuda.copies(held)
    assert told["register_error"] == error and ("registered_to_host_gb_per_s" in told) == (error == 0)
    assert told["pinned_to_device_gb_per_s"] > 0 and len(runtime.registered) == (error != 0)


def test_a_context_is_timed(held: Held) -> None:
    assert cuda.context(held)["seconds"] >= 0


def test_every_verb_is_a_function() -> None:
    for place in VERBS.values():
        module, _, name = place.partition(":")
        found: Any = getattr(__import__(module, fromlist=[name]), name)
        assert callable(found), place
