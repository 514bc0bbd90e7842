"""Random numbers of the device come from the host's generators, which follow the host's order, not the queue's.

So whatever can be drawn without looking into device memory is drawn when the host asks for it, and only the result
travels into the queue. That keeps the numbers those of a plain run, and the host ahead of the queue.
"""

from collections.abc import Sequence
from typing import Any

import torch


def drawn(func: Any, args: Sequence[Any], kwargs: dict[str, Any], given: list[torch.Tensor]) -> torch.Tensor | None:
    """What an operation that fills its first argument would put there. None: it looks at what is computed."""
    fills = torch.Tag.inplace in func.tags and len(given) == 1
    if not fills:
        return None
    numbers = torch.empty_strided(args[0].shape, args[0].stride(), dtype=args[0].dtype)
    func(numbers, *args[1:], **kwargs)
    return numbers
