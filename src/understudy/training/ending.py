"""How a member leaves: only when all ranks are done, for somebody may need its state until then."""

import atexit
import os
import sys
import time
from typing import TYPE_CHECKING

from understudy.detection.progress import Place
from understudy.groups.stillness import Stillness
from understudy.protocol.events import UNTIMED, MemberFinished

if TYPE_CHECKING:
    from understudy.training.member import Member

_REST_LIMIT = 1.0  # seconds


def finish(member: "Member") -> bool:
    """All steps are done here: ask to be released. False: the world has recovered meanwhile, which may have taken this
    rank back to an earlier step, so that what comes next has to be decided anew."""
    if not _await_release(member):
        member.recover()
        return False
    atexit.register(come_to_rest)
    return True


def come_to_rest() -> None:
    """Wait until the engine's threads do. One of them may still have to drop a tensor of the last collective, for which
    it needs Python's lock; whoever asks for that while Python shuts down is ended, and in a thread of C++ that is
    SIGABRT for the whole process."""
    stillness, deadline = Stillness(), time.monotonic() + _REST_LIMIT
    while not stillness.reached() and time.monotonic() < deadline:
        time.sleep(0.001)


def finish_early(member: "Member") -> None:
    """At the end of a process that left the loop before the last step. It cannot take part in a step any more."""
    if not _await_release(member):
        print(
            f"understudy: rank {member.world.rank} left its loop over job.steps() before the last step, and the others "
            "still need it; its process ends",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)
    come_to_rest()


def _await_release(member: "Member") -> bool:
    """False: the generation was abandoned before that."""
    member.saving.finish()
    while not member.control.released and not member.failed:
        member.control.no_more_steps()
        if member.abandoned:
            return False
        member.show(Place.FINISHED)
        finished = MemberFinished(at=UNTIMED, member=member.control.member, generation=member.generation)
        member.control.send(finished)
        member.control.await_release(member.generation, timeout=1.0)
    if member.control.released:
        member.show(Place.RELEASED)
    member.saving.neighbour.end()
    member.checkpoints.finish(member)  # nobody needs us any more
    return True
