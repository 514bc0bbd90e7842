"""Faults of a job on several hosts, drawn from a seed and carried out on real processes: ranks, hosts and leaders.

Unlike `chaos` nothing waits at gates and nothing is tied to steps: it is for claims that look at a job while it moves.
"""

import enum
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from understudy.protocol.stages import Stage
from understudy_testkit.faults.loopback_job import LoopbackJob

_LOOK_EVERY = 0.2


class Strike(enum.StrEnum):
    KILL_RANK = "rank killed"
    STOP_RANK = "rank stopped"
    KILL_HOST = "host killed"
    WITHOUT_SPARES = "a rank lost with all spares"  # the world goes on without it
    KILL_LEADER = "leader killed"


@dataclass
class HostChaos:
    """`deck`: what is struck first, from its end; then all of `kinds` in any order, again and again."""

    job: LoopbackJob
    random: Random
    kinds: tuple[Strike, ...]
    deck: list[Strike] = field(default_factory=list)
    done: list[Strike] = field(default_factory=list)
    _dead_hosts: list[str] = field(default_factory=list)
    _struck_in: int = 0  # the generation

    def strike(self) -> Strike | None:
        """The next one, if the world is on its feet."""
        if not self.stands():
            return None
        if not self.deck:
            self.deck = list(self.kinds)
            self.random.shuffle(self.deck)
        self._struck_in = self.job.job()["generation"] or 0
        if not self._carry_out(self.deck[-1]):
            return None
        self.done.append(self.deck.pop())
        return self.done[-1]

    def settle(self, seconds: float) -> None:
        """The world gets so long to notice and to go on, with or without what was killed."""
        since = self._struck_in + (0 if self.done[-1:] == [Strike.KILL_LEADER] else 1)
        self._wait(lambda: self._trains() and self.job.job()["generation"] >= since, seconds)

    def recover(self, seconds: float) -> None:
        """What was killed is started again, and the world gets so long to stand on its feet."""
        self._bring_back()
        self._wait(self.stands, seconds)

    def stands(self) -> bool:
        """It trains with two ranks at least, so that one can be lost."""
        job = self.job.job()
        return self._trains() and job["ranks_up"] - len(job["absent_ranks"]) >= 2

    def _trains(self) -> bool:
        stage: str | None = self.job.job()["stage"]
        return stage == Stage.TRAINING.value

    @staticmethod
    def _wait(true: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not true() and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY)

    def _carry_out(self, kind: Strike) -> bool:
        match kind:
            case Strike.KILL_RANK:
                return self._kill_rank()
            case Strike.STOP_RANK:
                return self._kill_rank(signal.SIGSTOP)
            case Strike.KILL_HOST:
                holders = [one["host"] for one in self._hosts() if one["ranks"]]
                if len(holders) < 2:
                    return False
                self._kill_host(self.random.choice(holders))
                return True
            case Strike.WITHOUT_SPARES:
                return self._kill_spares_and_rank()
            case Strike.KILL_LEADER:
                self.job.kill_coordinator()
                return True

    def _hosts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.job.ask("/v1/hosts") or []
        return [one for one in found if one["state"] != "lost"]

    def _kill_rank(self, with_signal: signal.Signals = signal.SIGKILL) -> bool:
        ranks = list(range(self.job.setup.ranks))
        self.random.shuffle(ranks)
        return any(self.job.kill_rank(rank, with_signal) for rank in ranks)

    def _kill_spares_and_rank(self) -> bool:
        """Hosts that keep spares may have ranks too; then those are lost, and no other one."""
        keepers = [one for one in self._hosts() if one["spares_wanted"]]
        ranks = [one["ranks"] for one in self._hosts() if not one["spares_wanted"] and one["ranks"]]
        lost = any(one["ranks"] for one in keepers)
        if len(ranks) < (1 if lost else 2):
            return False
        for one in keepers:
            self._kill_host(one["host"])
        return lost or self.job.kill_rank(self.random.choice(ranks)[0])

    def _kill_host(self, host: str) -> None:
        self.job.kill_host(host)
        self._dead_hosts.append(host)

    def _bring_back(self) -> None:
        """A killed host comes back with nothing, and a killed coordinator is followed by a new one that stands by."""
        while self._dead_hosts:
            self.job.start_agent(self._dead_hosts.pop())
        alive = [one for one in self.job.coordinators if one.process.poll() is None]
        if len(alive) < len(self.job.seats):
            self.job.start_coordinator()
