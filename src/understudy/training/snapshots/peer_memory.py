"""When a rank's state goes to peer memory, and how it comes back.

Only where some rank has no twin, and there on all ranks, for all must be able to go back to the same state. The first
copy is there before the world counts as established. After that a step with which a copy is due counts as committed
once the copy is whole: before its rank passes the next fence. Where there are other hosts, so is a copy on another one
(`peer_replication`).

A copy is taken while a body computes, never while the script's own code between two steps runs: that may have other
weights in the model for a while (averaged ones, for an evaluation).
"""

from collections.abc import Callable

from understudy.errors import TransferError
from understudy.foundation.ids import StepNumber
from understudy.groups.world import World
from understudy.ledger.records import Sharing
from understudy.state.peer_memory.snapshots import Snapshots, bring_back
from understudy.state.protected_state import Protected
from understudy.training.contact import Contact
from understudy.training.rank_local.state import RankLocalState
from understudy.training.snapshots.peer_replication import PeerReplication
from understudy.training.status import MemberStatus
from understudy.training.step_ledger import StepLedger


class PeerMemory:
    """Of one member. Inert when `snapshots` are never due."""

    def __init__(
        self,
        snapshots: Snapshots,
        replication: PeerReplication,
        *,
        status: MemberStatus,
        world: World,
        contact: Contact,
        protected: Protected,
        rank_local: RankLocalState,
        ledger: StepLedger,
        note: Callable[[str], None],
    ) -> None:
        self._snapshots, self._replication = snapshots, replication
        self._status, self._world, self._contact = status, world, contact
        self._protected, self._rank_local, self._ledger, self._note = protected, rank_local, ledger, note
        self._due = False  # a copy is to be begun with the next step
        self._under_way = False
        self._first = -1  # the state that was saved when the world was established
        self._complained = False

    def save_first(self, holds: int) -> None:
        """At the end of a world's first step, before any other rank is told."""
        if self._snapshots.every:
            self.connect()
            self._snapshots.begin(self._protected, holds, self._replication.send)
            self._first, self._under_way = holds, True
            self.finish()

    def connect(self) -> None:
        """To the buddies of this generation, once it is known whether any rank is alone."""
        self._replication.connect(self._world, self._status.generation, wanted=self._snapshots.every > 0)

    def stop(self) -> None:
        """Every rank has a twin: nothing is saved any more."""
        self._replication.remove_all()
        self._snapshots.stop()

    def save_now(self) -> None:
        """All processes are about to begin anew: whatever is held is saved, wanted or not."""
        holds = self._status.holds
        assert holds is not None
        self.finish()
        if holds not in self._snapshots.steps():
            self._snapshots.begin(self._protected, holds)
            trouble = self._snapshots.finish()
            if trouble is not None:
                raise TransferError(f"the state before step {holds} could not be saved: {trouble}")

    def hold_for_probation(self, step: int) -> None:
        """The world has resumed before `step`. If that turns out bad it goes back further: an older copy must stay.
        Only here: if this host is lost as well meanwhile, a durable checkpoint is next."""
        if self._snapshots.every:
            self._snapshots.hold(step)

    def probation_is_over(self) -> None:
        self.finish()
        self._snapshots.release()

    def resumed(self) -> None:
        """The world goes on: copies that were made only for a restart are of no use any more. A rank that has another
        buddy now, or whose buddy had none of its present state, sends a copy."""
        if not self._snapshots.every:
            self._snapshots.remove()
        elif self._replication.has_buddy and self._status.holds is not None:
            self._under_way = True
            self._snapshots.begin_again(self._protected, self._status.holds, self._replication.send)
        else:
            self._ledger.saved()

    def begin(self, attempt: int, sharing: Sharing | None = None, trusted: bool = True) -> None:
        """A step is done: write it down, and save its state if that is due and it can be trusted."""
        holds = self._status.holds
        assert holds is not None
        due = trusted and self._snapshots.due(holds) and holds != self._first
        self._ledger.committed(self._protected, self._status.generation, holds - 1, attempt, sharing, due)
        self._due = self._due or due

    def begin_due(self) -> None:
        """A step begins: what is protected stays as it is until its fence, but for buffers."""
        due, self._due = self._due, False
        if due and self._status.holds is not None:
            self._under_way = True
            self._replication.sweep()
            self._snapshots.begin(self._protected, self._status.holds, self._replication.send)

    def finish(self) -> None:
        """Before state changes. That a copy failed is said, and costs nothing else until it is needed. If it was cut
        short by a recovery, the step counts when the world has resumed and the copy is there."""
        self.begin_due()
        under_way, self._under_way = self._under_way, False
        if not under_way:
            return
        trouble = self._snapshots.finish()
        elsewhere = self._replication.take_trouble()
        if self._replication.interrupted and (self._replication.given_up or self._contact.lost()):
            return
        self._ledger.saved()
        if (trouble or elsewhere) is not None and not self._complained:
            self._complained = True
            what = "could not be saved in peer memory, and is not covered" if trouble else "has no copy on another host"
            self._note(f"rank {self._world.rank} {what}: {trouble or elsewhere}")

    def steps(self) -> tuple[StepNumber, ...]:
        """States that can be brought back."""
        self.finish()
        return tuple(map(StepNumber, self._snapshots.steps()))

    def bring_back(self, step: int) -> None:
        copy = self._snapshots.read(step)
        self._status.holds = None  # torn until it is all there
        bring_back(self._protected, copy)
        self._rank_local.go_back()
        self._status.holds = StepNumber(step)
        self._ledger.inherited(self._protected, self._status.generation, step - 1)

    def forget_after(self, step: int) -> None:
        self.finish()
        self._snapshots.forget_after(step)
        self._replication.forget_after(step)
        self._ledger.forget_after(step)
