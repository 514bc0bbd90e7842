"""What is played: how many ranks, how many steps, who is whose twin. Knows nothing of faults, time or messages."""

from dataclasses import dataclass

from understudy.foundation.ids import Rank

State = tuple[int, ...]
"""The content of a rank's state: the steps that were applied to it, in order. Right is 0, 1, 2 and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """`shards`: how many different pieces of state there are; ranks with the same piece are twins.

    `fenced`: ranks wait for each other before they apply. Only a world of one shard may go without.
    """

    world_size: int
    steps: int
    fenced: bool
    shards: int = 1

    def __post_init__(self) -> None:
        if not self.fenced and self.shards != 1:
            raise ValueError("a world without a fence needs every rank to be a twin of every other")

    def twin_key(self, rank: Rank) -> str:
        return f"shard {rank % self.shards}"

    @property
    def everybody(self) -> int:
        """All ranks as a bit mask."""
        return (1 << self.world_size) - 1
