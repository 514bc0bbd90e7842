"""Faults of a job on several hosts, drawn from a seed and carried out on real processes: ranks, hosts and leaders.

Unlike `chaos` nothing waits at gates and nothing is tied to steps: it is for claims that look at a job while it moves.
"""

import enum
import signal
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

from understudy.faults.loopback_job import LoopbackJob
from understudy.protocol.stages import Stage

_LOOK_EVERY = 0.2


class Strike(enum.StrEnum):
    KILL_RANK = "rank killed"
    STOP_RANK = "rank stopped"
    KILL_HOST = "host killed"
    WITHOUT_SPARES = "hosts with spares killed, and a rank"  # the world goes on without it
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

    def strike(self) -> Strike | None:
        """The next one, if the world is on its feet."""
        if not self.stands():
            return None
        if not self.deck:
            self.deck = list(self.kinds)
            self.random.shuffle(self.deck)
        if not self._carry_out(self.deck[-1]):
            return None
        self.done.append(self.deck.pop())
        return self.done[-1]

    def recover(self, seconds: float) -> None:
        """What was killed is started again, and the world gets so long to stand on its feet."""
        self._bring_back()
        deadline = time.monotonic() + seconds
        while not self.stands() and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY)

    def stands(self) -> bool:
        """It trains with two ranks at least, so that one can be lost."""
        job = self.job.job()
        trains: bool = job["stage"] == Stage.TRAINING.value
        return trains and job["ranks_up"] - len(job["absent_ranks"]) >= 2

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
                for one in self._hosts():
                    if one["spares_wanted"] and not one["ranks"]:
                        self._kill_host(one["host"])
                return self._kill_rank()
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
