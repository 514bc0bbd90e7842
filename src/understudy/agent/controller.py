"""What decides for the job, as the agent sees it. On one host that is the coordinator in the same process, on
many hosts the client of a coordinator elsewhere.
"""

from typing import Protocol

from understudy.foundation.ids import MemberId
from understudy.protocol.events import Event
from understudy.wire.messages import Measured


class Controller(Protocol):
    """Takes events and, through the supervisor's own methods, answers them."""

    def start(self) -> None: ...

    def tick(self) -> None: ...

    def handle(self, event: Event) -> None: ...

    def next_deadline(self) -> float | None: ...

    def inherited(self, member: MemberId, bequest: bytes) -> None: ...

    def lost_since(self, member: MemberId | None, at: float) -> None: ...

    def measured(self, told: Measured) -> None: ...

    def advanced(self, smallest: int, largest: int) -> None:
        """The steps that ranks of this host have committed; only to be shown."""
