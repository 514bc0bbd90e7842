"""What a process of a rank holds between two questions."""

from dataclasses import dataclass, field
from typing import Any

import torch

from understudy.devices.contract import Device, FenceEvent
from understudy.groups.families.contract import CommunicatorFamily, Links


@dataclass
class Held:
    """`abandoned`: told to stop waiting. `place`: how far the host is in its step. What is None or empty comes by
    `take`, `make`, `begin_training`."""

    device: Device | None = None
    family: CommunicatorFamily | None = None
    where: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rank: int = 0
    store: Any = None
    links: Links | None = None
    backends: dict[str, Any] = field(default_factory=dict)
    events: list[FenceEvent] = field(default_factory=list)
    tensors: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    parameters: list[torch.nn.Parameter] = field(default_factory=list)
    optimizer: torch.optim.Optimizer | None = None
    abandoned: bool = False
    place: str = ""

    def taken(self) -> Device:
        if self.device is None:
            raise RuntimeError("no device was taken yet")
        return self.device

    def linked(self) -> Links:
        if self.links is None:
            raise RuntimeError("no group was made yet")
        return self.links

    def lost_contact(self) -> bool:
        return self.abandoned or self.linked().broken()
