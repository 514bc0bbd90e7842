"""The rungs of the ladder, from the top: ways to go on after a loss, and how often each may be taken. `ladder` says
when which is taken."""

import enum
from dataclasses import dataclass

from understudy.protocol.reasons import Code, Reason, because


class Rung(enum.Enum):
    SWAP = "swap"  # a spare takes over the rank, and its state comes from other ranks that hold it
    DEGRADE = "degrade"  # fewer replicas, the same global batch
    PEER_MEMORY = "peer memory"  # the state comes from a copy that outlived its process
    RESTART = "restart from memory"  # all processes begin anew; what the old ones held was saved before
    CHECKPOINT = "durable checkpoint"  # all ranks go back to what is on disk


@dataclass(frozen=True, slots=True, kw_only=True)
class RungLimits:
    """How often each rung may be taken in a job. None: as often as it helps; 0: never."""

    swap: int | None = None
    degrade: int | None = None  # --no-degrade: 0
    peer_memory: int | None = None
    restart: int | None = 2  # --max-restarts-from-memory
    checkpoint: int | None = None

    def refusal(self, rung: Rung, taken: int) -> Reason | None:
        """Why a rung may not be taken once more."""
        limit: int | None = getattr(self, rung.name.lower())
        if limit is None or taken < limit:
            return None
        if limit == 0:
            return because(Code.NOT_ALLOWED, strategy=rung.value)
        return because(Code.BUDGET_SPENT, limit=limit, strategy=rung.value)
