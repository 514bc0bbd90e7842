"""How a member leaves: only when all ranks are done, for another rank may need its state until then."""

import atexit
import os
import sys
import time

from understudy.detection.progress import Place
from understudy.foundation.ids import Rank
from understudy.groups.quiescence import Quiescence
from understudy.protocol.events import UNTIMED, MemberFinished
from understudy.training.control import ControlLine
from understudy.training.recovery.recovery import Recovery
from understudy.training.script_errors import ScriptErrors
from understudy.training.snapshots.checkpointing import Checkpointing
from understudy.training.snapshots.peer_memory import PeerMemory
from understudy.training.snapshots.peer_replication import PeerReplication
from understudy.training.status import MemberStatus

_REST_LIMIT = 1.0  # seconds


class Shutdown:
    """Of one member."""

    def __init__(
        self,
        *,
        rank: Rank,
        control: ControlLine,
        status: MemberStatus,
        errors: ScriptErrors,
        recovery: Recovery,
        peer_memory: PeerMemory,
        replication: PeerReplication,
        checkpoints: Checkpointing,
    ) -> None:
        self._rank, self._control, self._status, self._errors = rank, control, status, errors
        self._recovery, self._peer_memory, self._replication = recovery, peer_memory, replication
        self._checkpoints = checkpoints

    def finish(self) -> bool:
        """All steps are done here: ask to be released. False: the world has recovered meanwhile, which may have taken
        this rank back to an earlier step, so that what comes next has to be decided anew."""
        if not self._await_release():
            self._recovery.recover()
            return False
        atexit.register(wait_for_quiescence)
        return True

    def finish_early(self) -> None:
        """At the end of a process that left the loop before the last step. It cannot take part in a step any more."""
        self._recovery.know_what_is_held()
        if not self._await_release():
            print(
                f"understudy: rank {self._rank} left its loop over job.steps() before the last step, and the others "
                "still need it; its process ends",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)
        wait_for_quiescence()

    def _await_release(self) -> bool:
        """False: the generation was abandoned before that."""
        control, status = self._control, self._status
        self._peer_memory.finish()
        while not control.released and not self._errors.failed:
            control.no_more_steps()
            if status.abandoned:
                return False
            status.show(Place.FINISHED)
            control.send(MemberFinished(at=UNTIMED, member=control.member, generation=status.generation))
            control.await_release(status.generation, timeout=1.0)
        if control.released:
            status.show(Place.RELEASED)
        self._replication.end()
        self._checkpoints.finish()  # no rank needs us any more
        return True


def wait_for_quiescence() -> None:
    """Wait until the engine's threads rest. One of them may still have to drop a tensor of the last collective, for
    which it needs Python's lock; a thread that asks for that while Python shuts down is ended, and in a thread of C++
    that is SIGABRT for the whole process."""
    quiescence, deadline = Quiescence(), time.monotonic() + _REST_LIMIT
    while not quiescence.reached() and time.monotonic() < deadline:
        time.sleep(0.001)
