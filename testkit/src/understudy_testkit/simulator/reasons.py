"""Is the reason with which the machine stopped a job true? Compares its words with the world's ground truth."""

from typing import TYPE_CHECKING

from understudy.foundation.ids import Rank
from understudy.protocol.commands import Outcome, StopJob
from understudy_testkit.simulator.member import SimulatedMember

if TYPE_CHECKING:
    from understudy_testkit.simulator.world import World

KINDS: dict[str, str] = {
    "every rank ended its script": "succeeded",
    "is not trusted": "bad state and nothing below",
    "(it has no twin)": "no live twin",
    "no live rank holds any state": "no state left",
    "ended its script with a failure": "lost after release",
    "had already ended its script": "lost after release",
    "--spares 0": "no spares allowed",
    "died before they were warm": "host not healthy",
    "to compute it again did not help": "twins differ",
    "without a new fault, and stands still again": "no progress",
    "while the scripts came to their end": "lost after release",
    "is under suspicion": "no usable host",
    "no host is there": "no usable host",
    "is full, and so is every other one": "no usable host",
    "is taken, and of every other one": "no usable host",
    "there is no room for": "no usable host",
    "no world within": "hosts never came",
}
"""What a stop may say, and the short name under which it is counted. Anything else breaks the promise to go on."""


def kind_of_stop(stop: StopJob) -> str | None:
    for words, kind in KINDS.items():
        if words in stop.reason:
            return kind
    return None


def why_stop_is_wrong(stop: StopJob, world: "World") -> str | None:
    """None when the job had to stop, or succeeded."""
    kind = kind_of_stop(stop)
    if kind is None:
        return f"the job could have gone on, but stopped: {stop.reason}"
    if (stop.outcome is Outcome.SUCCEEDED) != (kind == "succeeded"):
        return f"outcome {stop.outcome.value} with reason: {stop.reason}"
    if kind in ("no live twin", "no state left") and (step := _saved_everywhere(world)) is not None:
        return f"a copy of the state before step {step} is saved for every rank, but the job stopped: {stop.reason}"
    if kind == "bad state and nothing below" and not world.somebody_was_bad:
        return f"no state was bad, but the job stopped: {stop.reason}"
    if kind == "no live twin" and _every_shard_has_a_holder(world):
        return f"every shard is held by a living member, but the job stopped: {stop.reason}"
    if kind == "no state left" and any(map(_holds_state, world.members.values())):
        return f"a living member holds state, but the job stopped: {stop.reason}"
    if kind == "no progress" and not getattr(world, "livelocked", False):
        return f"the world could make progress, but stopped: {stop.reason}"
    if kind == "hosts never came" and world.machine.generation:
        return f"the world had been founded, but the job stopped: {stop.reason}"
    if kind == "no spares allowed" and world.machine.policy.spares:
        return f"spares were allowed, but the job stopped: {stop.reason}"
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
