"""When the pool of spares is filled up. How, and where, is decided in `pool`."""

from understudy.protocol.commands import Command, StartMember
from understudy.protocol.policy import Policy
from understudy.protocol.pool import SparePool
from understudy.protocol.reasons import Reason
from understudy.protocol.roster import Roster
from understudy.protocol.round import Round
from understudy.protocol.stages import Stage


class Refill:
    def __init__(self, policy: Policy, roster: Roster, pool: SparePool, round_: Round) -> None:
        self.policy, self.roster, self.pool, self.round = policy, roster, pool, round_

    def refill(self, at: float, reason: Reason) -> list[Command]:
        """What is started is recorded first, so that a coordinator that takes over knows it and gives no name twice. A
        host that is under suspicion gets its spares when that is over."""
        commands = self.pool.refill(at, self.round.state.generation, reason)
        self.pool.state.refill_at = self.pool.next_chance(at)
        started = any(isinstance(command, StartMember) for command in commands)
        return [self.round.record(), *commands] if started else commands

    def now(self, at: float, reason: Reason) -> list[Command]:
        return self.refill(at, reason) if self.round.state.stage is Stage.TRAINING else []

    def soon(self, at: float) -> None:
        training = self.round.state.stage is Stage.TRAINING
        if training and self.pool.state.refill_at is None and self.pool.is_low(at):
            self.pool.state.refill_at = at + self.policy.refill_delay

    def for_the_absent(self, at: float) -> None:
        """A spare that prepares for one of them leaves its place to the next."""
        if any(rank not in self.roster.holders for rank in self.round.state.absent):
            self.soon(at)
