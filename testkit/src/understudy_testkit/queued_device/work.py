"""What a collective gives back: it lets later operations wait for it, not the host."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from understudy_testkit.queued_device.stream import Event, QueueStands


class QueuedWork(dist._Work):  # type: ignore[misc,name-defined]
    """`trouble` returns the error that is known of the communicator at the moment. `blocks`: of a barrier that the host
    waits for."""

    def __init__(
        self,
        event: Event,
        outputs: Sequence[torch.Tensor] = (),
        trouble: Callable[[], Exception | None] = lambda: None,
        blocks: bool = False,
    ) -> None:
        super().__init__()
        self._event, self._outputs, self._trouble, self._blocks = event, list(outputs), trouble, blocks

    def wait(self, timeout: timedelta | None = None) -> bool:
        """The queue does one thing after another, so what is queued later sees the outcome without this call."""
        self._raise_trouble()
        limit = timeout.total_seconds() if timeout is not None else 0.0
        if self._blocks or limit > 0:
            try:
                self._event.synchronize(limit if limit > 0 else None)
            except QueueStands as late:
                raise dist.DistBackendError(f"a collective did not end in time: {late}") from late
            self._raise_trouble()
        return True

    def _raise_trouble(self) -> None:
        trouble = self._trouble()
        if trouble is not None:
            raise trouble

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._event.query()

    def is_success(self) -> bool:
        return self._event.query() and self._trouble() is None

    def exception(self) -> Any:
        return self._trouble()

    def result(self) -> list[torch.Tensor]:
        return self._outputs

    def get_future(self) -> Any:
        """Complete at once, as that of NCCL: who uses its value does so in the queue."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._outputs)
        return future
