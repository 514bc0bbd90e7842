"""Faults of a job on several hosts, drawn from a seed and carried out on real processes: ranks, hosts and leaders.

Unlike `chaos` nothing waits at gates and nothing is tied to steps: it is for claims that look at a job while it moves.
"""

import enum
import signal
from dataclasses import dataclass, field
from random import Random

from understudy.faults.loopback_job import LoopbackJob
from understudy.protocol.stages import Stage


class Strike(enum.StrEnum):
    KILL_RANK = "rank killed"
    STOP_RANK = "rank stopped"
    KILL_HOST = "host killed"
    KILL_LEADER = "leader killed"


@dataclass
class HostChaos:
    """Deals kinds out of a shuffled deck, so that a few strikes see all of them. `done`: what was struck."""

    job: LoopbackJob
    random: Random
    kinds: tuple[Strike, ...]
    done: list[Strike] = field(default_factory=list)
    _deck: list[Strike] = field(default_factory=list)
    _dead_host: str | None = None

    def strike(self) -> Strike | None:
        """The next one, if the world is on its feet again; what was killed before comes back first."""
        if not self._stands():
            return None
        self._bring_back()
        if not self._deck:
            self._deck = list(self.kinds)
            self.random.shuffle(self._deck)
        kind = self._deck[-1]
        if not self._carry_out(kind):
            return None
        self._deck.pop()
        self.done.append(kind)
        return kind

    def _stands(self) -> bool:
        """It trains with two ranks at least, so that one can be lost."""
        job = self.job.job()
        return job["stage"] == Stage.TRAINING.value and job["ranks_up"] - len(job["absent_ranks"]) >= 2

    def _carry_out(self, kind: Strike) -> bool:
        ranks = list(range(self.job.setup.ranks))
        self.random.shuffle(ranks)
        match kind:
            case Strike.KILL_RANK:
                return any(self.job.kill_rank(rank) for rank in ranks)
            case Strike.STOP_RANK:
                return any(self.job.kill_rank(rank, signal.SIGSTOP) for rank in ranks)
            case Strike.KILL_HOST:
                return self._kill_host()
            case Strike.KILL_LEADER:
                self.job.kill_coordinator()
                return True

    def _kill_host(self) -> bool:
        hosts = [one["host"] for one in self.job.ask("/v1/hosts") or [] if one["ranks"]]
        held = sum(len(one["ranks"]) for one in self.job.ask("/v1/hosts") or [])
        if not hosts or held < 2:
            return False
        self._dead_host = self.random.choice(hosts)
        self.job.kill_host(self._dead_host)
        return True

    def _bring_back(self) -> None:
        """A killed host comes back with nothing, and a killed coordinator is followed by a new one that stands by."""
        if self._dead_host is not None:
            self.job.start_agent(self._dead_host)
            self._dead_host = None
        alive = [one for one in self.job.coordinators if one.process.poll() is None]
        if Strike.KILL_LEADER in self.kinds and len(alive) < 2:
            self.job.start_coordinator()
