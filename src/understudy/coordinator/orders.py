"""The protocol's commands as messages to workers."""

from understudy.protocol.commands import (
    AbandonGeneration,
    AskCheckpoints,
    AskStep,
    AssignRank,
    KeepAgreed,
    ReleaseMembers,
    ResumeAt,
    Tail,
)
from understudy.protocol.policy import Policy
from understudy.protocol.sentences import sentence
from understudy.wire import messages as msg


def assign(command: AssignRank, policy: Policy, store: str, bequest: bytes) -> msg.Assign:
    """`store`: the address of the c10d store. `bequest`: what the rank's first holder left."""
    return msg.Assign(
        generation=command.generation,
        founded_in=command.founded_in,
        founding=command.founding,
        rank=command.rank,
        local_rank=command.slot,
        local_world_size=max(1, policy.world_size // policy.hosts),
        world_size=policy.world_size,
        store=store,
        bequest=b"" if command.founding else bequest,
    )


def ask_step(command: AskStep) -> msg.WhichStep:
    return msg.WhichStep(generation=command.generation)


def ask_checkpoints(command: AskCheckpoints) -> msg.WhichCheckpoints:
    return msg.WhichCheckpoints(generation=command.generation)


def abandon(command: AbandonGeneration, *, leave: bool = False, take: bool = False) -> msg.Abandon:
    return msg.Abandon(
        generation=command.generation,
        reason=sentence(command.reason),
        boundary=command.boundary,
        leave=leave,
        take=take,
    )


def resume(command: ResumeAt, store: str, leave: bool) -> msg.Resume:
    donors = {int(receiver): [int(giver) for giver in givers] for receiver, givers in command.donors}
    return msg.Resume(
        generation=command.generation,
        step=command.step,
        donors=donors,
        reason=sentence(command.reason),
        store=store,
        leave=leave,
        rewind=command.rewind,
        rung=command.rung.value,
        absent=tuple(map(int, command.absent)),
        from_copies=tuple(map(int, command.from_copies)),
        distrust=command.distrust,
        probation=command.probation,
        tail=None if command.tail is None else _tail(command.tail),
    )


def _tail(tail: Tail) -> msg.Tail:
    return msg.Tail(done=tail.done, donor=tail.donor, lacking=tuple(map(int, tail.lacking)))


def agreed(command: KeepAgreed) -> msg.Agreed:
    return msg.Agreed(generation=command.generation, step=command.step)


def release(command: ReleaseMembers) -> msg.Release:
    return msg.Release(generation=command.generation)
