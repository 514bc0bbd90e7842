"""What is played: how many ranks, how many steps, which ranks are twins. Knows nothing of faults, time or messages."""

from dataclasses import dataclass

from understudy.foundation.ids import Rank

State = tuple[int, ...]
"""The content of a rank's state: the steps that were applied to it, in order. Right is 0, 1, 2 and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """`shards`: how many different pieces of state there are; ranks with the same piece are twins.

    `crossed`: every rank holds two pieces, one with its row and one with its column, and no rank has a twin.
    `fenced`: ranks wait for each other before they apply. Only a world of one shard may go without.
    """

    world_size: int
    steps: int
    fenced: bool
    shards: int = 1
    crossed: bool = False
    check_replicas_every: int = 0  # steps between two comparisons of twins; 0: never
    peer_snapshot_every: int = 0  # steps between two copies in peer memory; 0: never
    transfer_seconds: float = 0.0  # a transfer takes at least so long
    checkpoint_every: int = 0  # steps between two durable checkpoints; 0: none
    tail_every: int = 0  # steps between two evaluations that communicate; 0: none
    tail_length: int = 0  # collectives of one
    replaceable: bool = False  # the world can go on without a replica
    only_loss: bool = False  # bad state shows in the loss, and not in the parameters
    devices: bool = False  # ranks compute on devices, which complete later what their hosts have started
    ahead: int = 0  # steps that hosts may be ahead of flags on their devices; 0: the host waits at the fence

    def __post_init__(self) -> None:
        if not self.fenced and (self.shards != 1 or self.crossed):
            raise ValueError("a world without a fence needs every rank to be a twin of every other")
        if self.ahead and not (self.devices and self.shards == 1 and not self.crossed):
            raise ValueError("only devices decide at the fence, and only where every rank is a twin of every other")

    def replica(self, rank: Rank) -> tuple[Rank, ...]:
        """The ranks that together hold one of each piece, this one among them. Empty: the world cannot do without."""
        if not self.replaceable or self.crossed:
            return ()
        first = rank - rank % self.shards
        return tuple(Rank(number) for number in range(first, first + self.shards))

    @property
    def waits_at_fence(self) -> bool:
        """On devices even a world of twins does: to copy what a twin has applied helps only if that was no garbage."""
        return self.fenced or self.devices

    @property
    def reads_state(self) -> bool:
        """Does a host look at the state after a step? Then it waits for its device."""
        return bool(self.check_replicas_every or self.peer_snapshot_every or self.tail_every)

    def has_tail(self, state: State) -> bool:
        """Do ranks communicate after the last step in this state?"""
        return self.tail_every > 0 and len(state) % self.tail_every == 0

    @property
    def has_twins(self) -> bool:
        return not self.crossed and self.shards < self.world_size

    def is_saved(self, state: State) -> bool:
        """Is a copy due of what a rank holds now?"""
        return self.peer_snapshot_every > 0 and len(state) > 1 and len(state) % self.peer_snapshot_every == 0

    def twin_key(self, rank: Rank) -> str:
        return "pieces " + " and ".join(map(str, self.holdings(rank)))

    def holdings(self, rank: Rank) -> tuple[int, ...]:
        if not self.crossed:
            return (rank % self.shards,)
        return (rank % self.shards, self.shards + rank // self.shards)

    @property
    def pieces(self) -> frozenset[int]:
        return frozenset(piece for rank in range(self.world_size) for piece in self.holdings(Rank(rank)))

    @property
    def all_ranks(self) -> int:
        """As a bit mask."""
        return (1 << self.world_size) - 1
