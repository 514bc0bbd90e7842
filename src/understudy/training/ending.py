"""How a member leaves: only when all ranks are done, for somebody may need its state until then."""

import atexit
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from understudy.detection.progress import Place
from understudy.groups.stillness import Stillness
from understudy.wire import messages

if TYPE_CHECKING:
    from understudy.training.member import Member

_REST_LIMIT = 1.0  # seconds


def finish(member: "Member") -> None:
    """All steps are done here."""
    _await_release(member, when_abandoned=member.recover)
    atexit.register(come_to_rest)


def come_to_rest() -> None:
    """Wait until the engine's threads do. One of them may still have to drop a tensor of the last collective, for which
    it needs Python's lock; whoever asks for that while Python shuts down is ended, and in a thread of C++ that is
    SIGABRT for the whole process."""
    stillness, deadline = Stillness(), time.monotonic() + _REST_LIMIT
    while not stillness.reached() and time.monotonic() < deadline:
        time.sleep(0.001)


def finish_early(member: "Member") -> None:
    """At the end of a process that left the loop before the last step. It cannot take part in a step any more."""

    def end_process() -> NoReturn:
        print(
            f"understudy: rank {member.world.rank} left its loop over job.steps() before the last step, and the others "
            "still need it; its process ends",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)

    _await_release(member, when_abandoned=end_process)
    come_to_rest()


def _await_release(member: "Member", when_abandoned: Callable[[], None]) -> None:
    member.saving.finish()
    while not member.control.released and not member.failed:
        member.control.no_more_steps()
        if member.abandoned:
            when_abandoned()
            member.saving.finish()
        member.show(Place.FINISHED)
        member.control.send(messages.Finished(generation=member.generation))
        member.control.await_release(member.generation, timeout=1.0)
    if member.control.released:
        member.show(Place.RELEASED)
    member.saving.neighbour.end()
    member.checkpoints.finish(member)  # nobody needs us any more
