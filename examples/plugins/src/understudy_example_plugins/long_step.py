"""A detector that notes a rank which has been in one step for long. It knows no speed and compares no ranks."""

from dataclasses import dataclass

from understudy.detection.contract import STEPPING, Evidence, Look, RankLook
from understudy.foundation.ids import MemberId


@dataclass(slots=True)
class _Stay:
    """Since when a member has been in its step, and whether that was said."""

    step: int
    since: float
    said: bool = False


class LongStep:
    """`limit`: seconds. A step that is longer is said once."""

    contract_version = 1

    def __init__(self, limit: float = 2.0) -> None:
        self._limit = limit
        self._stays: dict[MemberId, _Stay] = {}

    def look(self, look: Look) -> tuple[Evidence, ...]:
        stepping = {
            member: seen for member, seen in look.ranks.items() if seen.rank is not None and seen.page.place in STEPPING
        }
        self._stays = {member: self._stay(look.now, member, seen) for member, seen in stepping.items()}
        late = [seen for member, seen in stepping.items() if self._is_late(look.now, self._stays[member])]
        return tuple(self._evidence(look.now, seen) for seen in late)

    def _stay(self, now: float, member: MemberId, seen: RankLook) -> _Stay:
        former = self._stays.get(member)
        return former if former is not None and former.step == seen.page.step else _Stay(seen.page.step, now)

    def _is_late(self, now: float, stay: _Stay) -> bool:
        late = now - stay.since > self._limit and not stay.said
        stay.said = stay.said or late
        return late

    def _evidence(self, now: float, seen: RankLook) -> Evidence:
        text = f"rank {seen.rank} has been in step {seen.page.step} for more than {self._limit:g} s"
        return Evidence(at=now, kind="long-step", text=text, rank=seen.rank, member=seen.member)
