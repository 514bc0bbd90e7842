"""How long a step takes, as several hosts say. All deadlines follow from it, so no single host decides it."""

import statistics

from understudy.foundation.ids import HostId


class Paces:
    """The newest of each host. One host more or less that lies does not move the median of many."""

    def __init__(self) -> None:
        self._of: dict[HostId, float] = {}

    def learnt(self, host: HostId, seconds: float) -> float:
        """What all of them say together."""
        self._of[host] = seconds
        return statistics.median_low(self._of.values())

    def forget(self, host: HostId) -> None:
        self._of.pop(host, None)
