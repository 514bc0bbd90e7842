"""This member's part in copies on other hosts: it sends its own to one rank, its buddy, and keeps those of others.

Connections are formed again with every generation, and broken as soon as one is abandoned: no thread waits for a copy
once a recovery has begun. What was interrupted is sent again when the world has resumed.
"""

import threading

from understudy.errors import TransferError
from understudy.foundation.ids import Generation, HostId, Rank, StepNumber
from understudy.groups.world import PAIRS, World
from understudy.protocol.neighbours import keeper_of, pairs_of
from understudy.state.peer_memory.replication import (
    copies_on_this_host,
    forget_copies_after,
    keep_copies,
    remove_copies,
    send_copy,
)
from understudy.state.peer_memory.snapshots import NEWEST, Slot, read_from, slots_of
from understudy.state.protected_state import Inventory
from understudy.state.transfer.p2p import Channel

_END_LIMIT = 5.0  # seconds for a thread whose connection is broken


class PeerReplication:
    """`folder`: of this host. `founded_in`: the world whose copies these are. `host`: empty where there is only one,
    and where nothing is ever saved; then there are no copies."""

    def __init__(self, folder: str, founded_in: int, rank: int, host: str) -> None:
        self._folder, self._founded_in, self._rank, self._host = folder, founded_in, rank, host
        self._world: World | None = None
        self._channel: Channel | None = None  # to our buddy
        self._buddy = -1
        self._threads: list[threading.Thread] = []
        self._wanted_here: set[int] | None = None  # ranks whose copies are to be on this host, since the last regroup
        self._trouble: str | None = None
        self.interrupted = False  # the copy that was sent last is not there, because contact was lost
        self.given_up = False  # the generation is abandoned
        self.sent = 0  # bytes, of the last copy

    @property
    def has_buddy(self) -> bool:
        return self._channel is not None

    # -- connections ----------------------------------------------------------------------------------------------

    def connect(self, world: World, generation: Generation, wanted: bool) -> None:
        """With every generation, by all ranks. There are copies only if all of them want some."""
        self.end()
        self.interrupted = False
        if not self._host:
            return
        told = world.tell_all(generation, "hosts", self._host if wanted else "")
        if not all(told.values()):
            return
        hosts = {rank: HostId(host) for rank, host in told.items()}
        self._world, self.given_up = world, False
        for (owner, buddy), pair in world.form_pairs(generation, pairs_of(world.rank, hosts)).items():
            if owner == world.rank:
                self._channel, self._buddy = Channel(pair), buddy
            else:
                self._begin_to_keep(Channel(pair), owner)
        here = {rank for rank, host in hosts.items() if host == self._host}
        self._wanted_here = {rank for rank in hosts if rank in here or keeper_of(rank, hosts) in here}

    def _begin_to_keep(self, channel: Channel, owner: int) -> None:
        slots = slots_of(self._folder, self._founded_in, owner)[:NEWEST]

        def keep() -> None:
            try:
                keep_copies(channel, owner, slots)
            except (RuntimeError, OSError):
                return  # contact is lost; the slot that was being written is empty

        self._threads.append(threading.Thread(target=keep, name=f"understudy-keep-{owner}", daemon=True))
        self._threads[-1].start()

    def break_off(self) -> None:
        """A thread that sends or receives a copy now fails at once. Called from any thread."""
        self.given_up = True
        if self._world is not None:
            self._world.connections.break_group(PAIRS)

    def end(self) -> None:
        if self._world is not None:
            self.break_off()
            for thread in self._threads:
                thread.join(_END_LIMIT)
        self._threads, self._channel, self._world = [], None, None

    # -- our own copy ---------------------------------------------------------------------------------------------

    def send(self, slot: Slot) -> None:
        """In the thread that has just written it."""
        if self._channel is None:
            return
        try:
            self.sent = send_copy(self._channel, self._buddy, slot)
            self.interrupted = False
        except TransferError as error:
            self.interrupted, self._trouble = False, str(error)
        except RuntimeError as error:
            self.interrupted, self._trouble = True, str(error)

    def take_trouble(self) -> str | None:
        trouble, self._trouble = self._trouble, None
        return trouble

    # -- copies of others -----------------------------------------------------------------------------------------

    def keeps(self) -> tuple[tuple[Rank, StepNumber], ...]:
        found = copies_on_this_host(self._folder, self._founded_in, self._rank) if self._host else ()
        return tuple((Rank(rank), StepNumber(step)) for rank, step in found)

    def read(self, rank: int, step: int) -> Inventory:
        return read_from(slots_of(self._folder, self._founded_in, rank), step)

    def forget_after(self, step: int) -> None:
        if self._host:
            forget_copies_after(self._folder, self._founded_in, step)

    def sweep(self) -> None:
        """All ranks have passed a fence since the last regroup: the copies that are wanted are where they belong."""
        if self._wanted_here is not None:
            remove_copies(self._folder, self._founded_in, but_of=self._wanted_here)
        self._wanted_here = None

    def remove_all(self) -> None:
        self.end()
        if self._host:
            remove_copies(self._folder, self._founded_in)
