"""How long backward passes waited for the gradients of other ranks: what DDP's computing time is without.

DDP waits at the very end of a backward pass, in a callback of autograd's engine, for all gradients to be summed up. We
queue a callback of our own in front of it and one behind it, from a hook on a parameter; the time between them is the
wait. That costs three short Python calls per backward pass.

DDP's own timers (`_set_ddp_runtime_logging_sample_rate`, `_get_ddp_logging_data`) see the same end of computing. But
they leave out data loading and all but the last of several accumulated microbatches, can be read only when the next
forward pass has begun, and copy some fifty strings and numbers for every reading: five times the cost
(docs/detection.md).
"""

import time
from typing import Any

from torch import nn
from torch.autograd import Variable

_queue_callback: Any = Variable._execution_engine.queue_callback


class GradientWaits:
    """Used by the main thread; the control thread only asks whether it is `waiting`."""

    def __init__(self) -> None:
        self.seconds = 0.0  # since `begin`
        self._queued = False
        self._since: float | None = None

    @property
    def waiting(self) -> bool:
        return self._since is not None

    def watch(self, engine: nn.Module) -> None:
        """The gradient of the last parameter usually comes first. Should it have none in some step, then the first."""
        parameters = [parameter for parameter in engine.parameters() if parameter.requires_grad]
        for parameter in dict.fromkeys((*parameters[-1:], *parameters[:1])):
            parameter.register_hook(self._on_gradient)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """A step begins. What an earlier one left behind when it was cut short does not count."""
        self.seconds, self._queued, self._since = 0.0, False, None

    def _on_gradient(self, _gradient: object) -> None:
        if not self._queued:
            self._queued = True
            _queue_callback(self._on_computed)

    def _on_computed(self) -> None:
        """All gradients are computed here. DDP's own callback comes next, and then what we queue now."""
        self._since = time.monotonic()
        _queue_callback(self._on_synchronised)

    def _on_synchronised(self) -> None:
        if self._since is not None:
            self.seconds += time.monotonic() - self._since
        self._queued, self._since = False, None
