"""The training script with a body that swallows the failure of its collectives and goes on to the optimizer."""

from typing import Any

import torch

from understudy_testkit.faults import train_script

backward: Any = torch.Tensor.backward


def swallowing_backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    try:
        backward(self, *args, **kwargs)
    except Exception as error:
        print(f"swallowed {type(error).__name__}", flush=True)


torch.Tensor.backward = swallowing_backward  # type: ignore[method-assign]
train_script.main()
