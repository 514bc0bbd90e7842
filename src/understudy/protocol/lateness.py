"""What a recovery waits for, and until when. Called only by `job`; what is awaited from whom is kept in `recovery`."""

from typing import TYPE_CHECKING

from understudy.foundation.ids import MemberId
from understudy.protocol.commands import Command
from understudy.protocol.roster import Member
from understudy.protocol.stages import Stage
from understudy.protocol.telling import say_again

if TYPE_CHECKING:
    from understudy.protocol.recovery import Recovery


def next_deadline(recovery: "Recovery") -> float | None:
    joiners = [_preparation_deadline(recovery, id_) for id_ in recovery.joining if id_ not in recovery.killed]
    deadlines = [d for d in (recovery.deadline, recovery.resend_at, *joiners) if d is not None]
    return min(deadlines, default=None)


def why_too_late(recovery: "Recovery", at: float) -> str | None:
    """A reason to open the next generation: this one does not come to its end."""
    if recovery.deadline is None or at < recovery.deadline:
        return None
    if recovery.stage is Stage.FORMING:
        return (
            f"{len(recovery.awaited)} members had not resumed {recovery.policy.forming_limit:g} s after the verdict "
            "(--forming-limit)"
        )
    if recovery.stage is Stage.STOPPING and recovery.boundary is not None:
        return f"{len(recovery.awaited)} members did not come to the boundary before step {recovery.boundary} in time"
    return None


def on_tick(recovery: "Recovery", at: float) -> list[Command]:
    commands: list[Command] = []
    if recovery.stage is Stage.STOPPING:
        commands += _kill_the_silent(recovery, at)
    if recovery.resend_at is not None and at >= recovery.resend_at:
        recovery.resend_at = at + recovery.policy.resend_every
        commands += say_again(recovery)
    return commands


def _kill_the_silent(recovery: "Recovery", at: float) -> list[Command]:
    members = recovery.roster.members
    silent: list[Member] = []
    if recovery.deadline is not None and at >= recovery.deadline:
        recovery.deadline = None
        awaited = [members[id_] for id_ in sorted(recovery.awaited)]
        silent += [member for member in awaited if member.host not in recovery.hosts.silent]
    slow = [members[id_] for id_ in sorted(recovery.joining) if at >= _preparation_deadline(recovery, id_)]
    commands = recovery.kill(at, silent, "it did not report its position in time: it hangs")
    limit = f"it was not prepared within {recovery.policy.preparation_limit:g} s (--preparation-limit)"
    return commands + recovery.kill(at, slow, limit)


def _preparation_deadline(recovery: "Recovery", member: MemberId) -> float:
    return recovery.roster.members[member].assigned_at + recovery.policy.preparation_limit
