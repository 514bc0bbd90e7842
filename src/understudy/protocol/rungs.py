"""The recovery strategies ("rungs"), in the order in which they are tried: what each is called, and how often it may be
taken. `planning` and `fallback` say when which is taken; the table of each in a policy file is made of what is here.
"""

import enum
from dataclasses import dataclass, field
from typing import Any

from understudy.protocol.reasons import Code, Reason, because


class Rung(enum.Enum):
    SWAP = "swap"  # a spare takes over the rank, and its state comes from other ranks that hold it
    DEGRADE = "degrade"  # fewer replicas, the same global batch
    PEER_MEMORY = "peer memory"  # the state comes from a copy that outlived its process
    RESTART = "restart from memory"  # all processes begin anew; what the old ones held was saved before
    CHECKPOINT = "durable checkpoint"  # all ranks go back to what is on disk


def _usual(limit: int | None, about: str) -> Any:
    return field(default=limit, metadata={"about": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class RungLimits:
    """How often each rung may be taken in a job. None: as often as it helps; 0: never. `about`: for a reader of the
    policy's reference."""

    swap: int | None = _usual(None, "a spare takes over the rank, with the state of a rank that holds the same")
    degrade: int | None = _usual(None, "the world goes on without a replica, at the same global batch")  # --no-degrade
    peer_memory: int | None = _usual(None, "the state comes from a snapshot that outlived its process")
    restart: int | None = _usual(2, "all processes begin anew with the state that the old ones saved")
    checkpoint: int | None = _usual(None, "all ranks go back to what is on disk")

    def refusal(self, rung: Rung, taken: int) -> Reason | None:
        """Why a rung may not be taken once more."""
        limit: int | None = getattr(self, rung.name.lower())
        if limit is None or taken < limit:
            return None
        if limit == 0:
            return because(Code.NOT_ALLOWED, strategy=rung.value)
        return because(Code.BUDGET_SPENT, limit=limit, strategy=rung.value)
