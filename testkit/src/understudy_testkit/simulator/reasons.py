"""Is the reason with which the machine stopped a job true? Compares its codes with the world's ground truth."""

from typing import TYPE_CHECKING

from understudy.foundation.ids import Rank
from understudy.protocol.commands import Outcome, StopJob
from understudy.protocol.reasons import Code
from understudy.protocol.sentences import sentence
from understudy_testkit.simulator.member import SimulatedMember

if TYPE_CHECKING:
    from understudy_testkit.simulator.world import World

KINDS: dict[Code, str] = {
    Code.ALL_SCRIPTS_ENDED: "succeeded",
    Code.NOT_TRUSTED: "bad state and nothing below",
    Code.NO_LIVE_TWIN: "no live twin",
    Code.NO_STATE_LEFT: "no state left",
    Code.SCRIPT_FAILED: "lost after release",
    Code.SCRIPT_HAD_ENDED: "lost after release",
    Code.NO_SPARES_OFFERED: "no spares allowed",
    Code.SPARES_DIE_EARLY: "host not healthy",
    Code.TWINS_STILL_DIFFER: "twins differ",
    Code.NO_PROGRESS: "no progress",
    Code.LOST_AT_THE_END: "lost after release",
    Code.HOST_SUSPECT: "no usable host",
    Code.NO_HOST: "no usable host",
    Code.HOSTS_FULL: "no usable host",
    Code.PLACES_TAKEN: "no usable host",
    Code.NO_DEVICE: "no usable device",
    Code.TOO_FEW_DEVICES: "no usable device",
    Code.NO_ROOM: "no usable host",
    Code.NO_ROOM_FOR_WORLD: "no usable host",
    Code.HOSTS_MISSING: "hosts never came",
}
"""What a stop may say, and the short name under which it is counted. Anything else breaks the promise to go on."""


def kind_of_stop(stop: StopJob) -> str | None:
    said = {part.code for part in stop.reason.all()}
    return next((kind for code, kind in KINDS.items() if code in said), None)


def why_stop_is_wrong(stop: StopJob, world: "World") -> str | None:
    """None when the job had to stop, or succeeded."""
    wrong = _what_is_wrong(stop, world)
    return None if wrong is None else f"{wrong}: {sentence(stop.reason)}"


def _what_is_wrong(stop: StopJob, world: "World") -> str | None:
    kind = kind_of_stop(stop)
    if kind is None:
        return "the job could have gone on, but stopped"
    if (stop.outcome is Outcome.SUCCEEDED) != (kind == "succeeded"):
        return f"outcome {stop.outcome.value} with this reason"
    if kind in ("no live twin", "no state left") and (step := _saved_everywhere(world)) is not None:
        return f"a copy of the state before step {step} is saved for every rank, but the job stopped"
    if kind == "bad state and nothing below" and not world.state_was_damaged:
        return "no member's state was bad, but the job stopped"
    if kind == "no live twin" and _every_shard_has_a_holder(world):
        return "every shard is held by a living member, but the job stopped"
    if kind == "no state left" and any(map(_holds_state, world.members.values())):
        return "a living member holds state, but the job stopped"
    if kind == "no progress" and not getattr(world, "livelocked", False):
        return "the world could make progress, but stopped"
    if kind == "hosts never came" and world.machine.generation:
        return "the world had been founded, but the job stopped"
    if kind == "no usable device" and not world.lost_devices:
        return "no device was lost, but the job stopped"
    if kind == "no spares allowed" and world.machine.policy.spares:
        return "spares were allowed, but the job stopped"
    return None


def _saved_everywhere(world: "World") -> int | None:
    """A state that every rank has saved. (There may be others that can be put together from copies and twins.)"""
    saved = [world.within_reach(Rank(rank)) for rank in range(world.script.world_size)]
    return max(set.intersection(*saved), default=None)


def _holds_state(member: SimulatedMember) -> bool:
    return member.alive and not member.hung and not member.forsaken and member.state is not None


def _every_shard_has_a_holder(world: "World") -> bool:
    counting = [member for member in world.members.values() if _holds_state(member) and not _sat_out(member, world)]
    return {piece for member in counting for piece in member.holdings} >= world.script.pieces


def _sat_out(member: SimulatedMember, world: "World") -> bool:
    """The world went on without it: what it holds is older than what the others hold, and can be joined to nothing.
    A member that takes part is one step behind the others at most, and that step it can still apply or receive."""
    assert member.state is not None
    behind = world.invariants.committed - len(member.state)
    return behind > 1 or (behind == 1 and member.rank in world.invariants.absent)
