"""The contract of a family of communicators.

A family makes the backends that stand under torch's process groups, connects them to their peers, and knows how a
blocked operation of theirs is made to fail. A group keeps its identity over a regroup only if its backend can be
connected again to other peers. So what `make` returns is a backend of torch with `get_reconfigure_handle()`.
`join(backend=NAME)` chooses a family; `understudy_testkit.conformance.communicators` tries what it promises.

Knows nothing of what the groups are for; a device (`understudy.devices`) is only named.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ReconfigureOptions, Store


class Links(Protocol):
    """What the groups of this process are connected by. All may be called from any thread."""

    def forming(self, group: str = "", fresh: bool = False, keep: str | None = None) -> AbstractContextManager[None]:
        """What is connected inside belongs to `group`. `fresh`: all groups are formed again, so that what was before is
        forgotten, except the links of `keep`."""
        ...

    def hold(self, group: str, backend: Any) -> None:
        """This backend is connected for `group` from now on. Called inside `forming`, before it is."""
        ...

    def hear(self, value: bytes) -> None:
        """Something that ranks have told each other through the store."""
        ...

    def broken(self) -> bool:
        """Has any peer gone, or is any communicator in an error state, as far as is known without asking? It is called
        in every step."""
        ...

    def break_all(self) -> int:
        """Every blocked operation of the groups fails now, or soon. Returns how many links were broken. It may be
        called again and again; what is being connected is left alone."""
        ...

    def break_group(self, group: str) -> int: ...

    def unsent(self) -> bool:
        """Is something that was sent still on this host?"""
        ...


@runtime_checkable
class WarningLinks(Protocol):
    """Links that can be asked for more than `Links`."""

    def warn(self, before_abort: Callable[[], None]) -> None:
        """Call it before any of the backends is aborted, by us or by its engine, and before anything is freed by that;
        in whichever thread. Asked before the first backend is held."""
        ...


@runtime_checkable
class CommunicatorFamily(Protocol):
    """What is true of one family.

    - `backend`: as `init_process_group` takes it.
    - `backend_type`: under which torch keeps a backend that takes the place of another one; CUSTOM is taken.
    - `device`: what its tensors are on, as a plugin of the kind `device` is called.
    - `carries_words`: can its groups carry tensors in host memory? If not, the fence between hosts and the transfer of
      state go by a gloo group of our own beside them (`groups.words`).
    - `connected_when_made`: a group that the engine makes is connected at once. If not, a first connection follows.
    - `arguments`: what the engine must be given for every group that it makes, beside what the script says.
    - `variables`: of the environment; set before the first group is made, where the user has not set them.
    - `breaks_in_rest`: are links broken when all threads of the process wait? If not, they are broken at once, which is
      what frees a device whose queue hangs.
    """

    backend: str
    backend_type: dist.ProcessGroup.BackendType
    device: str
    carries_words: bool
    connected_when_made: bool
    arguments: Mapping[str, Any]
    variables: Mapping[str, str]
    breaks_in_rest: bool

    def objection(self, environment: Mapping[str, str]) -> str | None:
        """Why a fault could not be recovered with these settings, in a sentence that says what to change."""
        ...

    def make(self, store: Store, place: int, ranks: list[int], timeout: timedelta) -> Any:
        """A backend without connections, for the one at `place` among `ranks`: under a group that has no real one yet,
        or in the place of one that is stuck."""
        ...

    def connect_within(self, timeout: timedelta, size: int) -> timedelta:
        """How long `connect` may take with so many ranks. `timeout`: of the job."""
        ...

    def connect(self, backend: Any, unique: int, handles: list[str], within: timedelta, device: torch.device) -> None:
        """To those that showed these handles, in the order of their ranks. It may block, but not longer than `within`,
        and lets other threads run meanwhile. Raises when it did not come about. `unique`: of this attempt. `device`:
        of this rank; it is called in a thread of its own, in which none is current."""
        ...

    def links(self, exists: Callable[[str], bool], formed: Callable[[list[int]], None]) -> Links:
        """`exists`: whether the script still has a group of that name. `formed`: to be told of the descriptors of new
        connections; the agent keeps them open should this process die in the middle of a send."""
        ...


def reconfigure(backend: Any, unique: int, handles: list[str], within: timedelta) -> None:
    """`connect`, for a backend with torch's own `reconfigure`."""
    options = ReconfigureOptions()
    options.uuid, options.handles, options.timeout = unique, handles, within
    backend.reconfigure(options).wait()
