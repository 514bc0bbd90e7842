"""Deadlines of a recovery as a whole, and of joiners. Called only by `job`; what is awaited from whom is kept in
`recovery`, and whoever of them makes no progress is the business of `watchdog`."""

from typing import TYPE_CHECKING

from understudy.protocol.commands import Command
from understudy.protocol.stages import Stage
from understudy.protocol.telling import say_again

if TYPE_CHECKING:
    from understudy.protocol.recovery import Recovery


def next_deadline(recovery: "Recovery") -> float | None:
    joiners = [recovery.preparation_deadline(id_) for id_ in recovery.joining if id_ not in recovery.killed]
    deadlines = [d for d in (recovery.deadline, recovery.resend_at, *joiners) if d is not None]
    return min(deadlines, default=None)


def why_too_late(recovery: "Recovery", at: float) -> str | None:
    """A reason to open the next generation: this one does not come to its end."""
    if recovery.deadline is None or at < recovery.deadline:
        return None
    if recovery.stage is Stage.FORMING:
        return (
            f"{len(recovery.awaited)} members had not resumed, and none of them had made progress for "
            f"{recovery.policy.forming_limit:g} s (--forming-limit)"
        )
    if recovery.stage is Stage.STOPPING and recovery.boundary is not None:
        return f"{len(recovery.awaited)} members did not come to the boundary before step {recovery.boundary} in time"
    return None


def give_more_time(recovery: "Recovery", at: float) -> None:
    """Somebody still makes progress, or is alive and on its way."""
    forming = recovery.stage is Stage.FORMING
    if recovery.deadline is not None:
        limit = recovery.policy.forming_limit if forming else recovery.policy.stall_deadline(recovery.pace)
        recovery.deadline = max(recovery.deadline, at + limit)


def on_tick(recovery: "Recovery", at: float) -> list[Command]:
    commands: list[Command] = []
    if recovery.stage is Stage.STOPPING:
        members = recovery.roster.members
        slow = [members[id_] for id_ in sorted(recovery.joining) if at >= recovery.preparation_deadline(id_)]
        limit = f"it was not prepared within {recovery.policy.preparation_limit:g} s (--preparation-limit)"
        commands += recovery.kill(at, slow, limit)
    if recovery.resend_at is not None and at >= recovery.resend_at:
        recovery.resend_at = at + recovery.policy.resend_every
        commands += say_again(recovery)
    return commands
