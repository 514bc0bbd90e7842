"""Contact with the other ranks: whether it is lost, and how a main thread that waits in vain is freed.

When a generation is abandoned the control thread calls `interrupt` until the main thread has noticed. The main thread
asks `lost` where an exception may be explained by a fault elsewhere.
"""

import time

from understudy.detection.progress import Place
from understudy.foundation.ids import Generation
from understudy.groups.quiescence import Quiescence
from understudy.groups.world import World
from understudy.protocol import events as ev
from understudy.training.control import ControlLine
from understudy.training.device_rest import Rest
from understudy.training.snapshots.peer_replication import PeerReplication
from understudy.training.status import MemberStatus

_LONGEST_UNREST = 0.25
"""Seconds after which the connections of an abandoned generation are broken even if some thread still runs, or
something is still to be sent."""


class Contact:
    """Of one member."""

    def __init__(
        self, control: ControlLine, status: MemberStatus, world: World, replication: PeerReplication, rest: Rest
    ) -> None:
        self._control, self._status, self._world, self._replication = control, status, world, replication
        self._rest, self._break_at_once = rest, world.break_at_once
        self._quiescence = Quiescence()
        self._interrupted_for, self._interrupted_at = Generation(0), 0.0

    def lost(self) -> bool:
        """Is an exception in the body explained by a fault elsewhere?"""
        return self._status.abandoned or self._world.connections.broken()

    def interrupt(self) -> None:
        """Called by the control thread, again and again until the main thread has noticed. Breaking waits for
        quiescence, but not forever; what frees a device does not wait. That the generation is abandoned is known here
        before anything is broken: a rank whose collectives are broken off must not arrive at the fence."""
        if not self._status.in_steps:
            return
        if self._interrupted_for != self._control.abandoned:
            self._interrupted_for, self._interrupted_at = self._control.abandoned, time.monotonic()
            self._replication.break_off()
        if self._break_at_once is not None:
            self._break_at_once()
        quiet = self._quiescence.reached() and not self._world.connections.unsent()
        if quiet or time.monotonic() - self._interrupted_at > _LONGEST_UNREST:
            self._world.connections.break_all()
            self._world.store.interrupt()

    def come_to_rest(self) -> None:
        """Nothing is queued on the device any more. Before anything is put back, told or taken."""
        self._rest.come()

    def look_at(self, error: BaseException) -> None:
        """Ends the process if its device cannot be used any more: that is no matter of the script's."""
        self._rest.look_at(error)

    def enter_newest_generation(self) -> None:
        """The main thread has unwound, and its device has."""
        self._rest.come()
        self._status.generation = self._control.notice()
        self._replication.break_off()

    def await_word(self, why: str) -> None:
        """Contact is lost: say so, and wait until a new generation is opened, however long that takes. A rank that
        holds state does not give up because no coordinator is there."""
        self._status.show(Place.RECOVERING)
        if not self._status.abandoned:
            member, generation = self._control.member, self._status.generation
            self._control.send(ev.ContactLost(at=ev.UNTIMED, member=member, generation=generation, why=why[:1000]))
            self.await_next_generation()

    def await_next_generation(self) -> None:
        self._control.await_abandonment(self._status.generation)
