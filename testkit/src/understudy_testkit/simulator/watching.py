"""What a simulated member does with its state after a commit: on probation it looks whether it is sound; a copy of it
goes to peer memory; and twins compare."""

from typing import TYPE_CHECKING

from understudy.foundation.ids import StepNumber
from understudy.protocol import events as ev

if TYPE_CHECKING:
    from understudy_testkit.simulator.member import SimulatedMember
    from understudy_testkit.simulator.phases import Surroundings


def after_commit(member: "SimulatedMember", world: "Surroundings") -> None:
    assert member.state is not None and member.holds is not None
    step = member.holds
    watched = step <= member.watches_until
    if watched and member.spoilt:
        world.on_committed(member)
        only_loss = member.script.only_loss
        told = ev.BadStateTold(
            at=world.now,
            member=member.id,
            generation=member.acting,
            step=step,
            why=f"its {'loss is' if only_loss else 'parameters are'} not finite",
            certain=not only_loss,
        )
        world.send(member, told)
        return
    if member.script.is_saved(member.state):
        member.saving = member.state
    else:
        world.on_committed(member)
    _compare(member, world, step, watched)


def _compare(member: "SimulatedMember", world: "Surroundings", step: StepNumber, watched: bool) -> None:
    """Twins keep what they compare until they know whether they agree."""
    assert member.state is not None
    every = member.script.check_replicas_every
    due = every > 0 and step % every == 0
    if not due and not (watched and member.script.has_twins):
        return
    if due and not member.corrupt:
        agreed = tuple(copy for copy in member.copies[:-1] if len(copy) == member.kept)
        member.copies = (*agreed, *member.copies[-1:], member.state)
    digest = "flipped" if member.corrupt else "spoilt" if member.spoilt else str(step)
    world.send(
        member,
        ev.DigestTold(at=world.now, member=member.id, generation=member.acting, step=step, digest=digest, copied=due),
    )
