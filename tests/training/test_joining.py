"""What cannot be protected is refused before anything is built on it."""

import pytest
import torch

from understudy.errors import UsageError
from understudy.training.joining import check_supported


def test_this_torch_on_a_cpu_with_gloo_is_fine() -> None:
    for given in (None, "gloo"):
        assert check_supported(given).backend == "gloo"


@pytest.mark.parametrize("version", ["2.14.1", "2.16.0", "3.0.0+cpu"])
def test_another_torch_is_refused_with_the_line_to_type(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(UsageError, match=r"pip install 'torch==2\.15\.\*'"):
        check_supported(None)


def test_an_accelerator_is_refused_and_the_ways_out_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    with pytest.raises(UsageError, match=r"an accelerator \(cuda\).*torchrun.*CUDA_VISIBLE_DEVICES"):
        check_supported(None)


def test_another_backend_is_refused() -> None:
    with pytest.raises(UsageError, match=r"join\(backend='nccl'\): no installed package.*; there is gloo$"):
        check_supported("nccl")
