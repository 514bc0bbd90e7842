"""The links between members and coordinator: seeded delays, seeded losses, order kept per link or not.

Knows probabilities. Does not know what a message means, except that hello and its answer are one connection and do not
get lost: a process that never connects is a process that never started. Losses of processes are facts that the host
sees; they travel by another way and are never lost.
"""

from dataclasses import dataclass, field
from random import Random

from understudy.foundation.ids import MemberId
from understudy.protocol.commands import AssignRank
from understudy.protocol.events import MemberConnected


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How bad the network is in one run."""

    delay: float = 0.002  # usual delay in seconds
    slow_share: float = 0.0  # share of messages that take up to `slow_delay`
    slow_delay: float = 1.0
    loss: float = 0.0  # share of messages that never arrive
    in_order: bool = True  # per link


@dataclass(slots=True)
class Network:
    weather: Weather
    chance: Random
    lost: int = 0
    _last: dict[tuple[MemberId, bool], float] = field(default_factory=dict)

    def arrival(self, now: float, member: MemberId, message: object, upward: bool) -> float | None:
        """When the message arrives, or None: never."""
        weather, chance = self.weather, self.chance.random
        if weather.loss and chance() < weather.loss and not _part_of_hello(message):
            self.lost += 1
            return None
        slow = weather.slow_share and chance() < weather.slow_share
        at = now + chance() * (weather.slow_delay if slow else weather.delay)
        if weather.in_order or _part_of_hello(message):
            at = max(at, self._last.get((member, upward), 0.0))
            self._last[member, upward] = at
        return at


def _part_of_hello(message: object) -> bool:
    return isinstance(message, MemberConnected) or (isinstance(message, AssignRank) and message.founding)
