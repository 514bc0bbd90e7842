"""A member is lost: a spare, a rank that is needed, one that had handed its rank over, or one that was done.

Called only by `job` and `attendance`.
"""

from typing import TYPE_CHECKING

from understudy.foundation.ids import Rank
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import Command, DecisionKind, Outcome
from understudy.protocol.recovery import Unfit
from understudy.protocol.roster import Member, Standing
from understudy.protocol.stages import Stage

if TYPE_CHECKING:
    from understudy.protocol.job import JobMachine


def on_lost(machine: "JobMachine", at: float, member: Member, cause: Cause) -> list[Command]:
    was_warm, was_joining = member.standing is Standing.PARKED, member.standing is Standing.JOINING
    needed, prepared_for_a_move = needed_for(machine, member), machine.roster.is_understudy(member)
    machine.roster.remove(member)
    machine.finished.discard(member.id)
    machine.recovery.killed.discard(member.id)  # it is gone, and nobody has to wait for its end any more
    if member.rank is not None:
        machine.watchdog.fault_seen()
    if member.rank is None:
        return _on_spare_lost(machine, at, member, was_warm, cause)
    if prepared_for_a_move:
        return machine.migration.on_understudy_lost(at, member, cause.detail)
    if member.rank in machine.recovery.absent:
        machine.recovery.awaited.discard(member.id)
        useless = None if machine.released else machine.blame.verdict_on(member.rank, cause)
        commands = machine.migration.on_absent_lost(at, member.rank, useless)
        machine.refill_for_the_absent(at)
        return machine.after(at, commands)
    if needed is None:
        return []  # it has handed its rank over
    if machine.released or (cause.kind is CauseKind.EXIT and cause.exit_code == 0):
        return _on_left(machine, at, member.rank, cause)
    lost = f"rank {member.rank} (member {member.id}) was lost: {cause.detail}"
    useless = machine.blame.verdict_on(member.rank, cause)
    if useless is not None and was_joining and machine.recovery.established:
        machine.recovery.unfit[member.rank] = Unfit(useless, restart_helps=False)  # those that train are well
    elif useless is not None:
        return machine.stop(at, Outcome.FAILED, useless, exit_code_for(cause))
    return machine.open(at, lost, DecisionKind.SWAP, exit_code_for(cause), member.rank, member.id)


def needed_for(machine: "JobMachine", member: Member) -> Rank | None:
    """The rank that misses something without it. A leaver is needed until the world has resumed without it."""
    if member.rank is None or machine.roster.is_understudy(member):
        return None
    handed_over = member.leaving and machine.stage not in (Stage.STOPPING, Stage.FORMING)
    return None if handed_over else member.rank


def _on_spare_lost(machine: "JobMachine", at: float, member: Member, was_warm: bool, cause: Cause) -> list[Command]:
    if cause.kind is not CauseKind.DISMISSED:  # else we ended it, or its host never heard that it was to start
        machine.pool.on_spare_lost(member, was_warm)
    reason = f"spare {member.id} was lost: {cause.detail}"
    if machine.released:
        return []  # the job is at its end and needs no spare any more
    if machine.stage is Stage.TRAINING or machine.stage is Stage.FOUNDING:
        return machine.refill(at, reason)
    return []


def _on_left(machine: "JobMachine", at: float, rank: Rank, cause: Cause) -> list[Command]:
    """A script came to its end. All of them: the job is done."""
    if cause.exit_code != 0:
        reason = f"rank {rank} ended its script with a failure: {cause.detail}"
        return machine.stop(at, Outcome.FAILED, reason, exit_code_for(cause))
    machine.left.add(rank)
    if not machine.released and machine.stage in (Stage.STOPPING, Stage.FORMING):
        reason = f"rank {rank} ended its script while the world was being formed again"
        return machine.stop(at, Outcome.FAILED, reason, exit_code_for(cause))
    if len(machine.left) == machine.recovery.present_count:
        return machine.stop(at, Outcome.SUCCEEDED, "every rank ended its script", 0)
    return []


def exit_code_for(cause: Cause) -> int:
    """The exit code of `understudy run` when this loss ends the job: 128 + signal, or the script's own code."""
    if cause.exit_code < 0:
        return 128 - cause.exit_code
    return cause.exit_code or 1
