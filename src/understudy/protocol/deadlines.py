"""Deadlines of a recovery as a whole, and of joiners. Called only by `job`. Which members are awaited is kept in
`round_state`; what is done about a member that makes no progress is decided in `watchdog`."""

from understudy.protocol.commands import Command
from understudy.protocol.reasons import Code, Reason, because
from understudy.protocol.round import Round
from understudy.protocol.stages import Stage


def next_deadline(round_: Round) -> float | None:
    joiners = [round_.preparation_deadline(id_) for id_ in round_.state.joining if id_ not in round_.state.killed]
    deadlines = [d for d in (round_.state.deadline, round_.state.resend_at, *joiners) if d is not None]
    return min(deadlines, default=None)


def why_too_late(round_: Round, at: float) -> Reason | None:
    """A reason to open the next generation: this one does not come to its end."""
    if round_.state.deadline is None or at < round_.state.deadline:
        return None
    if round_.state.stage is Stage.FORMING:
        limit = round_.policy.forming_limit
        return because(Code.NOT_RESUMED_IN_TIME, count=len(round_.state.awaited), limit=limit)
    awaited, boundary = len(round_.state.awaited), round_.state.boundary
    if round_.state.stage is Stage.STOPPING and boundary is not None:
        return because(Code.BOUNDARY_MISSED, count=awaited, step=boundary)
    return None


def give_more_time(round_: Round, at: float) -> None:
    """A member that is awaited still makes progress, or is alive and on its way."""
    forming = round_.state.stage is Stage.FORMING
    if round_.state.deadline is not None:
        limit = round_.policy.forming_limit if forming else round_.policy.stall_deadline(round_.state.pace)
        round_.state.deadline = max(round_.state.deadline, at + limit)


def on_tick(round_: Round, at: float) -> list[Command]:
    commands: list[Command] = []
    if round_.state.stage is Stage.STOPPING:
        members = round_.roster.members
        slow = [members[id_] for id_ in sorted(round_.state.joining) if at >= round_.preparation_deadline(id_)]
        if slow:
            commands += round_.kill(at, slow, because(Code.NOT_PREPARED_IN_TIME, limit=round_.policy.preparation_limit))
    if round_.state.resend_at is not None and at >= round_.state.resend_at:
        round_.state.resend_at = at + round_.policy.resend_every
        commands += round_.outbound.say_again()
    return commands
