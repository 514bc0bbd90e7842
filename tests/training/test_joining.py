"""What cannot be protected is refused before anything is built on it."""

from collections.abc import Mapping

import pytest
import torch

from understudy.devices.cpu import Cpu
from understudy.errors import UsageError
from understudy.groups.families.gloo import Gloo
from understudy.plugins import registry
from understudy.plugins.kinds import COMMUNICATOR, DEVICE
from understudy.training.joining import choose_supported


class Late(Cpu):
    name, asynchronous = "late", True


class Gone(Late):
    name = "gone"

    def present(self) -> bool:
        return False


class Doubtful(Late):
    name = "doubtful"

    def objection(self, environment: Mapping[str, str]) -> str | None:  # noqa: ARG002
        return "switch it off and on again"


class OnLate(Gloo):
    device = "late"

    def objection(self, environment: Mapping[str, str]) -> str | None:
        return "unset SLOPPY" if "SLOPPY" in environment else None


class OnGone(Gloo):
    device = "gone"


class OnDoubtful(Gloo):
    device = "doubtful"


@pytest.fixture(autouse=True)
def of_this_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", [])
    for device in (Late, Gone, Doubtful):
        registry.register(DEVICE, device.name, f"{__name__}:{device.__name__}")
        registry.register(COMMUNICATOR, f"on-{device.name}", f"{__name__}:On{device.__name__}")


def test_this_torch_on_a_cpu_with_gloo_is_fine() -> None:
    for given in (None, "gloo"):
        family, device = choose_supported(given)
        assert family.backend == "gloo" and device.name == "cpu" and not device.asynchronous


@pytest.mark.parametrize("version", ["2.14.1", "2.16.0", "3.0.0+cpu"])
def test_another_torch_is_refused_with_the_line_to_type(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(UsageError, match=r"pip install 'torch==2\.15\.\*'"):
        choose_supported(None)


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("given", [None, "gloo"])
def test_an_accelerator_is_refused_and_the_ways_out_are_named(given: str | None) -> None:
    with pytest.raises(UsageError, match=r"an accelerator \(cuda\).*torchrun.*CUDA_VISIBLE_DEVICES"):
        choose_supported(given)


@pytest.mark.usefixtures("accelerator")
def test_a_family_that_is_asked_for_by_name_brings_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    family, device = choose_supported("on-late")
    assert isinstance(family, OnLate) and device.name == "late" and device.asynchronous
    monkeypatch.setenv("SLOPPY", "1")
    with pytest.raises(UsageError, match=r"join\(backend='on-late'\): unset SLOPPY"):
        choose_supported("on-late")


@pytest.mark.parametrize(
    ("given", "why"),
    [("on-gone", "for the device gone, and this process sees none"), ("on-doubtful", "switch it off and on again")],
)
def test_a_device_that_cannot_be_used_is_refused(given: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        choose_supported(given)


def test_another_backend_is_refused() -> None:
    with pytest.raises(UsageError, match=r"join\(backend='mpi'\): no installed package.*; there is gloo"):
        choose_supported("mpi")
