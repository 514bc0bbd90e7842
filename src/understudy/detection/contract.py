"""What a detector is: it looks at the ranks and says what it suspects. Third parties may write their own.

    class TooManySteps:
        contract_version = 1

        def look(self, look: Look) -> tuple[Evidence, ...]:
            late = [seen for seen in look.ranks.values() if seen.page.step > 1_000_000]
            return tuple(
                Evidence(at=look.now, kind="age", text=f"rank {seen.rank} is in step {seen.page.step}", rank=seen.rank)
                for seen in late
            )

Two rules:

1. A detector is pure. All it knows comes in through `look`: no clock, no files, no processes, no chance. So it can be
   tested without waiting (`understudy_testkit.conformance`), and a story that was recorded can be told to it again.
2. Evidence is not membership. A detector says what it saw, in words that a person understands and with the numbers, and
   what it would do. What is done is decided elsewhere, and may be nothing.

A detector that raises, or returns what is no evidence, is not asked again; training goes on. How a package brings one
is in docs/plugins.md; `contract_version` says for which version of this contract it was written.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from understudy.detection.progress import Place, Progress
from understudy.foundation.ids import MemberId, Rank

STEPPING = (Place.IN_STEP, Place.BETWEEN_STEPS, Place.FINISHED)
"""Places of a member that takes part in the world's steps."""


class Action(enum.Enum):
    """What a detector would do about what it saw."""

    NOTE = "note"  # a person should know
    MOVE = "move"  # give the rank to a spare at the end of a step; nothing is lost meanwhile
    REPLACE = "replace"  # do not wait for the end of a step: what this rank computes cannot be trusted any more


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLook:
    """One member at one moment. `rank` is None for a spare. `numbers`: what else is known of it, by name (such as the
    counters of its device); empty where nothing is."""

    member: MemberId
    rank: Rank | None
    page: Progress
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """All members that live on this host at `now` (seconds of a clock that never goes back)."""

    now: float
    ranks: Mapping[MemberId, RankLook]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """`kind`: one word, the same for everything of the same sort. `text`: what was seen, with the numbers. `rank` and
    `member`: the one it speaks against, None where that is none or all."""

    at: float
    kind: str
    text: str
    action: Action = Action.NOTE
    rank: Rank | None = None
    member: MemberId | None = None


@runtime_checkable
class Detector(Protocol):
    """Called a few times per second, always with a later `now` or the same one."""

    def look(self, look: Look) -> tuple[Evidence, ...]: ...
