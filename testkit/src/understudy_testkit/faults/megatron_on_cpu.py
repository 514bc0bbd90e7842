"""A shim of the test equipment: Megatron-core trains on CPUs too. Nothing of the product does this.

Megatron-core 0.16 knows no other device than CUDA: it makes its buffers there by name, asks for the current device, and
takes only parameters of which the type is written as one of CUDA's. So these answers are given for CPUs: tensors that
are asked for on `cuda` are made on `cpu`, the current device is `cpu`, types of tensors are written as CUDA's, and the
random stream of the device is that of the CPU. Its small functions are not compiled, which would take longer than the
training of a toy. What is computed, and what is said between ranks, is Megatron-core's own.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch

_FACTORIES = ("arange", "empty", "full", "ones", "tensor", "zeros")


def allow() -> None:
    """Call it before anything of Megatron-core is imported."""
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    for name, answer in (
        ("current_device", lambda: "cpu"),
        ("synchronize", lambda *_: None),
        ("manual_seed", torch.manual_seed),
        ("get_rng_state", lambda *_: torch.get_rng_state()),
    ):
        setattr(torch.cuda, name, answer)
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign]
    torch.Tensor.type = _typed(torch.Tensor.type)  # type: ignore[method-assign]
    torch.compile = lambda function, **_: function  # type: ignore[assignment]
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    logging.getLogger(random.__name__).setLevel(logging.ERROR)  # it warns when the CPU's stream moves with the device's


def _on_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        return make(*args, device="cpu" if str(device).startswith("cuda") else device, **kwargs)

    return made


def _typed(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def typed(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = function(tensor, *args, **kwargs)
        return found if args or kwargs else found.replace("torch.", "torch.cuda.", 1)

    return typed
