"""What a script says in a group that is a world of one while a joiner rehearses.

DDP needs real collectives in its backward pass, so its group is such a world then (`world`). The script's body may talk
in that group too, and believes that it has all its members: a world of one would refuse an `all_gather` into as many
tensors, or a broadcast from another rank. So calls from Python go to a stand-in of the group's true size, in which a
rank hears itself from all others; the engine's own calls, below Python, do not pass here.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup, HashStore

_METHODS = (
    *("allreduce", "allreduce_coalesced", "broadcast", "barrier", "reduce", "gather", "gather_single", "scatter"),
    *("allgather", "_allgather_base", "allgather_coalesced", "all_gather_single", "all_gather_single_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("alltoall", "alltoall_base", "all_to_all_single", "send", "recv", "recv_anysource"),
)


class StandIns:
    """Of one process. `begin` for each group that is a world of one, `end` when groups are formed with others."""

    def __init__(self) -> None:
        self._groups: list[tuple[dist.ProcessGroup, dist.ProcessGroup]] = []
        self._former: dict[str, Any] = {}

    def begin(self, group: dist.ProcessGroup, rank: int, size: int, device: torch.device) -> None:
        """`rank`, `size`: of the group as the script knows it."""
        custom = dist.ProcessGroup.BackendType.CUSTOM
        stand_in = dist.ProcessGroup(HashStore(), rank, size)
        stand_in._register_backend(device, custom, FakeProcessGroup._create_internal(rank, size))
        stand_in._set_default_backend(custom)
        if not self._groups:
            self._listen()
        self._groups.append((group, stand_in))

    def end(self) -> None:
        for name, method in self._former.items():
            setattr(dist.ProcessGroup, name, method)
        self._former.clear()
        self._groups.clear()

    def _listen(self) -> None:
        own = vars(dist.ProcessGroup)  # what is bound to a group when it is called; `getattr` would give less
        self._former = {name: own[name] for name in _METHODS if name in own}
        for name in self._former:
            setattr(dist.ProcessGroup, name, self._told_to_stand_in(getattr(dist.ProcessGroup, name)))

    def _told_to_stand_in(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def told(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            found = next((stand_in for known, stand_in in self._groups if known is group), group)
            return method(found, *args, **kwargs)

        return told
