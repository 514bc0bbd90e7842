"""A member is lost: a spare, a rank that is needed, one that had handed its rank over, or one that was done."""

from understudy.foundation.ids import Rank
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import Command, DecisionKind, Outcome, RecordGeneration
from understudy.protocol.context import Context
from understudy.protocol.crash_loop import CrashLoop
from understudy.protocol.device_loss import DeviceLoss
from understudy.protocol.ending import EndingState
from understudy.protocol.migration import Migration
from understudy.protocol.policy import Policy
from understudy.protocol.pool import SparePool
from understudy.protocol.reasons import Code, because
from understudy.protocol.refill import Refill
from understudy.protocol.roster import Member, Roster, Standing
from understudy.protocol.round import Round
from understudy.protocol.round_state import Unfit
from understudy.protocol.stages import Stage
from understudy.protocol.watchdog import Watchdog


class MemberLoss:
    def __init__(
        self,
        policy: Policy,
        roster: Roster,
        pool: SparePool,
        crash_loop: CrashLoop,
        round_: Round,
        migration: Migration,
        refill: Refill,
        watchdog: Watchdog,
        device_loss: DeviceLoss,
        ending: EndingState,
        context: Context,
    ) -> None:
        self.policy, self.roster, self.pool, self.crash_loop = policy, roster, pool, crash_loop
        self.round, self.migration, self.refill, self.watchdog = round_, migration, refill, watchdog
        self.device_loss, self.ending, self.context = device_loss, ending, context

    def on_lost(self, at: float, member: Member, cause: Cause) -> list[Command]:
        """What it means for its device comes first: no rank may go there any more."""
        device = [] if self.ending.released else self.device_loss.on_lost(at, member, cause)
        commands = [*device, *self._on_lost(at, member, cause)]
        recorded = any(isinstance(command, RecordGeneration) for command in commands)
        return commands if recorded or not device else [*commands, self.round.record()]

    def _on_lost(self, at: float, member: Member, cause: Cause) -> list[Command]:
        was_warm, was_joining = member.standing is Standing.PARKED, member.standing is Standing.JOINING
        needed, prepared_for_a_move = self.needed_for(member), self.roster.is_understudy(member)
        self.roster.remove(member)
        self.ending.finished.discard(member.id)
        self.round.state.killed.discard(member.id)  # it is gone, and its end is awaited no more
        if member.rank is not None:
            self.watchdog.state.fault_seen()
        if member.rank is None:
            return self._on_spare_lost(at, member, was_warm, cause)
        if prepared_for_a_move:
            return self.migration.on_understudy_lost(at, member, cause.reason)
        if member.rank in self.round.state.absent:
            self.round.state.awaited.discard(member.id)
            useless = (
                None
                if self.ending.released
                else self.crash_loop.why_give_up(member.rank, cause, self.policy.max_deaths_per_step)
            )
            commands = self.migration.on_absent_lost(at, member.rank, useless)
            self.refill.for_the_absent(at)
            return self.context.after(at, commands)
        if needed is None:
            return []  # it has handed its rank over
        if self.ending.released or (cause.kind is CauseKind.EXIT and cause.exit_code == 0):
            return self._on_left(at, member.rank, cause)
        lost = because(Code.RANK_LOST, rank=member.rank, member=member.id, cause=cause.reason)
        useless = self.crash_loop.why_give_up(member.rank, cause, self.policy.max_deaths_per_step)
        if useless is not None and was_joining and self.round.state.established:
            self.round.state.unfit[member.rank] = Unfit(useless, restart_helps=False)  # those that train are well
        elif useless is not None:
            return self.context.stop(at, Outcome.FAILED, useless, exit_code_for(cause))
        return self.context.open(at, lost, DecisionKind.SWAP, exit_code_for(cause), member.rank, member.id)

    def needed_for(self, member: Member) -> Rank | None:
        """The rank that misses something without it. A leaver is needed until the world has resumed without it."""
        if member.rank is None or self.roster.is_understudy(member):
            return None
        handed_over = member.leaving and self.round.state.stage not in (Stage.STOPPING, Stage.FORMING)
        return None if handed_over else member.rank

    def _on_spare_lost(self, at: float, member: Member, was_warm: bool, cause: Cause) -> list[Command]:
        if cause.kind is not CauseKind.DISMISSED:  # else we ended it, or its host never heard that it was to start
            self.pool.on_spare_lost(member, was_warm)
        reason = because(Code.SPARE_LOST, member=member.id, cause=cause.reason)
        if self.ending.released:
            return []  # the job is at its end and needs no spare any more
        if self.round.state.stage is Stage.TRAINING or self.round.state.stage is Stage.FOUNDING:
            return self.refill.refill(at, reason)
        return []

    def _on_left(self, at: float, rank: Rank, cause: Cause) -> list[Command]:
        """A script came to its end. All of them: the job is done."""
        if cause.exit_code != 0:
            reason = because(Code.SCRIPT_FAILED, rank=rank, cause=cause.reason)
            return self.context.stop(at, Outcome.FAILED, reason, exit_code_for(cause))
        self.ending.left.add(rank)
        if not self.ending.released and self.round.state.stage in (Stage.STOPPING, Stage.FORMING):
            reason = because(Code.SCRIPT_ENDED_IN_RECOVERY, rank=rank)
            return self.context.stop(at, Outcome.FAILED, reason, exit_code_for(cause))
        if len(self.ending.left) == self.round.present_count:
            return self.context.stop(at, Outcome.SUCCEEDED, because(Code.ALL_SCRIPTS_ENDED), 0)
        return []


def exit_code_for(cause: Cause) -> int:
    """The exit code of `understudy run` when this loss ends the job: 128 + signal, or the script's own code."""
    if cause.exit_code < 0:
        return 128 - cause.exit_code
    return cause.exit_code or 1
