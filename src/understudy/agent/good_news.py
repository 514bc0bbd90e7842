"""Notices when all ranks of this host go on after a recovery, so that an agent tells it.

Knows only what its own members report. That the whole world has resumed is the coordinator's to say.
"""

from collections.abc import Collection

from understudy.foundation.ids import MemberId
from understudy.wire.messages import Measured


class Recoveries:
    """A member that only saved its state, because all processes begin anew, has measured nothing: it does not go on."""

    def __init__(self) -> None:
        self._newest = 0
        self._told = 0
        self._measured = False
        self._going_on: set[MemberId] = set()

    def measured(self, told: Measured) -> None:
        self._look_at(told.generation)
        if told.generation == self._newest and told.timings:
            self._measured = True

    def resumed(self, generation: int, member: MemberId, seated: Collection[MemberId]) -> bool:
        """Whether this was the last one of those that hold a rank here. True once for each generation."""
        self._look_at(generation)
        if generation != self._newest or generation == self._told or not self._measured:
            return False
        self._going_on.add(member)
        if not self._going_on.issuperset(seated):
            return False
        self._told = generation
        return True

    def _look_at(self, generation: int) -> None:
        if generation > self._newest:
            self._newest, self._measured = generation, False
            self._going_on.clear()
