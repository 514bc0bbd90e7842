"""The protocol's commands as messages to workers."""

from understudy.protocol.commands import AbandonGeneration, AssignRank, ReleaseMembers, ResumeAt
from understudy.wire import messages as msg


def assign(command: AssignRank, world_size: int) -> msg.Assign:
    """On one host the local rank is the rank."""
    return msg.Assign(
        generation=command.generation,
        founded_in=command.founded_in,
        founding=command.founding,
        rank=command.rank,
        local_rank=command.rank,
        world_size=world_size,
    )


def abandon(command: AbandonGeneration) -> msg.Abandon:
    return msg.Abandon(generation=command.generation, reason=command.reason)


def resume(command: ResumeAt) -> msg.Resume:
    donors = {int(receiver): [int(giver) for giver in givers] for receiver, givers in command.donors}
    return msg.Resume(generation=command.generation, step=command.step, donors=donors, reason=command.reason)


def release(command: ReleaseMembers) -> msg.Release:
    return msg.Release(generation=command.generation)
