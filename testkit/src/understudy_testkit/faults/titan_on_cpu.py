"""A shim of the test equipment: torchtitan trains on CPUs too. Nothing of the product does this.

torchtitan 0.3 takes `cuda` where it finds no accelerator, asks the device for its memory, and has only attention that
torch cannot train on CPUs (flex_attention has no backward pass there); and FSDP2's reductions with a factor, as it asks
for them, are not there in gloo. So it is told that CPUs are its device and that they have no memory to speak of;
flex_attention is computed by its definition, through a matrix of scores; and reductions are sums, for the factor is 1.
Masks are not compiled either: with so small a model that is most of what a rank would do.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule


def allow() -> None:
    """Call it before anything of torchtitan is imported."""
    import torch._utils

    torch._utils._get_available_device_type = lambda: "cpu"
    from torchtitan.components import metrics
    from torchtitan.models.common import attention

    empty = metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)
    metrics.build_device_memory_monitor = lambda: SimpleNamespace(
        device_name="CPU", get_peak_stats=lambda: empty, reset_peak_stats=lambda: None
    )
    attention.FlexAttention._compiled_flex_attn = _attend
    attention._compiled_create_block_mask = attention.create_block_mask
    set_factor = FSDPModule.set_gradient_divide_factor

    def set_factor_and_sum(module: FSDPModule, factor: float) -> None:
        set_factor(module, factor)
        module.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = set_factor_and_sum  # type: ignore[assignment, method-assign]


def _attend(
    query: Any, key: Any, value: Any, *, score_mod: Any, block_mask: Any, scale: Any, enable_gqa: bool, **_: Any
) -> tuple[torch.Tensor, Any]:
    from torch.nn.attention.flex_attention import create_mask

    assert score_mod is None
    batch, _heads, length, _width = query.shape
    mask = create_mask(block_mask.mask_mod, batch, None, length, key.shape[2], device="cpu")
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=enable_gqa), SimpleNamespace(lse=None)
