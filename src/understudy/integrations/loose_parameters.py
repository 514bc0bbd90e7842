"""Parameters that an optimizer steps and that are in no module: flat partitions, or fp32 copies of what is in bf16."""

from collections.abc import Iterable

import torch
from torch import nn


class LooseParameters(nn.Module):
    """As a module, which can be given to `job.protect`. By place."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__()
        for place, parameter in enumerate(parameters):
            self._parameters[str(place)] = parameter  # type: ignore[assignment]  # a Parameter of it is another tensor
