"""The emulated device as code sees it that wants to know how far it has come."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torch

from understudy_testkit.queued_device import engines, race_detector
from understudy_testkit.queued_device.dispatch import Dispatcher, QueueingMode
from understudy_testkit.queued_device.memory import DeviceMemory
from understudy_testkit.queued_device.patches import Patches
from understudy_testkit.queued_device.stream import Event, QueueStands, Stream
from understudy_testkit.queued_device.travel import Travel
from understudy_testkit.queued_device.watchdog import Watchdog


class QueuedDevice:
    """`contagion`: whether an abort of a communicator spoils what peers receive that have not aborted."""

    def __init__(self, contagion: bool = True, watchdog_every: float = 1.0) -> None:
        self.contagion = contagion
        self.watchdog = Watchdog(watchdog_every)
        self.memory = DeviceMemory()
        self.stream = Stream(_below_autograd)
        self.dispatcher = Dispatcher(self.stream, self.memory)
        self._travel = Travel(self.stream, self.memory, self.dispatcher)
        self._patches = Patches()

    # -- how far it has come ------------------------------------------------------------------------------------------

    def record_event(self) -> Event:
        return self.stream.record()

    def query(self, event: Event) -> bool:
        return event.query()

    def drain(self, deadline: float | None = None) -> bool:
        """Has everything been done within `deadline` seconds? DeviceFault if something has failed."""
        try:
            self.stream.drain(deadline)
        except QueueStands:
            return False
        return True

    def probe(self, deadline: float = 1.0) -> bool:
        """Does it still compute, and rightly?"""
        with self.used():
            number = torch.full((8,), 3.0) + 4.0
        return self.drain(deadline) and bool((number == 7.0).all())

    # -- whose operations go there ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """What this thread does inside goes to the device. (Other threads see its memory as it is.)"""
        with QueueingMode(self.dispatcher):
            yield

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._travel.bring(tensor)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._travel.fetch(tensor)

    def adopt(self, tensors: Iterable[torch.Tensor]) -> None:
        """Their memory is the device's from now on: for what was made before it was there."""
        for tensor in tensors:
            self.memory.adopt(tensor)

    # -- for tests ----------------------------------------------------------------------------------------------------

    def held(self) -> contextlib.AbstractContextManager[None]:
        return self.stream.held()

    def slowed(self, seconds: float) -> contextlib.AbstractContextManager[None]:
        return self.stream.slowed(seconds)

    # -- putting it in ------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        race_detector.watch(self.stream, self.memory, self._patches)
        engines.watch(self.stream, self._patches)
        self._travel.watch(self._patches)

    def watch_also(self, watch: Callable[[Patches], None]) -> None:
        """Of what is not torch's. It is taken back with the rest."""
        watch(self._patches)

    def unwatch(self) -> None:
        self._patches.take_back()

    def close(self) -> None:
        self.watchdog.stop()
        self.stream.stop()


@contextlib.contextmanager
def _below_autograd() -> Iterator[None]:
    """For the queue's thread: the host's side has counted versions and recorded what is differentiated."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(keys):
        yield
