"""When a rank's state goes to peer memory, and how it comes back.

Only where some rank has no twin, and there on all ranks, for all must be able to go back to the same state. The first
copy is there before the world counts as established. After that a step with which a copy is due counts as committed
once the copy is whole: before its rank passes the next fence. Where there are other hosts, so is a copy on another one
(`neighbour`).

A copy is taken while a body computes, never while the script's own code between two steps runs: that may have other
weights in the model for a while (averaged ones, for an evaluation).
"""

from typing import TYPE_CHECKING

from understudy.errors import TransferError
from understudy.foundation.ids import StepNumber
from understudy.ledger.records import Sharing
from understudy.state.snapshots import Snapshots, bring_back
from understudy.training.neighbour import Neighbour

if TYPE_CHECKING:
    from understudy.training.member import Member


class Saving:
    """Of one member. Inert when `snapshots` are never due."""

    def __init__(self, snapshots: Snapshots, neighbour: Neighbour) -> None:
        self._snapshots, self.neighbour = snapshots, neighbour
        self._due: Member | None = None  # a copy is to be begun with the next step
        self._under_way: Member | None = None
        self._first = -1  # the state that was saved when the world was established
        self._complained = False

    def save_first(self, member: "Member", holds: int) -> None:
        """At the end of a world's first step, before anybody is told."""
        if self._snapshots.every:
            self.connect(member)
            self._snapshots.begin(member.protected, holds, self.neighbour.send)
            self._first, self._under_way = holds, member
            self.finish()

    def connect(self, member: "Member") -> None:
        """To the neighbours of this generation, once it is known whether anybody is alone."""
        self.neighbour.connect(member.world, member.generation, wanted=self._snapshots.every > 0)

    def nobody_is_alone(self) -> None:
        self.neighbour.remove_all()
        self._snapshots.stop()

    def save_now(self, member: "Member") -> None:
        """All processes are about to begin anew: whatever is held is saved, wanted or not."""
        assert member.holds is not None
        self.finish()
        if member.holds not in self._snapshots.steps():
            self._snapshots.begin(member.protected, member.holds)
            trouble = self._snapshots.finish()
            if trouble is not None:
                raise TransferError(f"the state before step {member.holds} could not be saved: {trouble}")

    def hold_for_probation(self, step: int) -> None:
        """The world has resumed before `step`. If that turns out bad it goes back further: an older copy must stay.
        Only here: if this host is lost as well meanwhile, a durable checkpoint is next."""
        if self._snapshots.every:
            self._snapshots.hold(step)

    def probation_is_over(self) -> None:
        self.finish()
        self._snapshots.release()

    def resumed(self, member: "Member") -> None:
        """The world goes on: copies that were made only for a restart are of no use any more. Who has another keeper
        now, or had none of its present state, sends a copy."""
        if not self._snapshots.every:
            self._snapshots.remove()
        elif self.neighbour.has_keeper and member.holds is not None:
            self._under_way = member
            self._snapshots.begin_again(member.protected, member.holds, self.neighbour.send)
        else:
            member.ledger.saved()

    def begin(self, member: "Member", attempt: int, sharing: Sharing | None = None, trusted: bool = True) -> None:
        """A step is done: write it down, and save its state if that is due and it can be trusted."""
        assert member.holds is not None
        due = trusted and self._snapshots.due(member.holds) and member.holds != self._first
        member.ledger.committed(member.protected, member.generation, member.holds - 1, attempt, sharing, due)
        if due:
            self._due = member

    def begin_due(self) -> None:
        """A step begins: what is protected stays as it is until its fence, but for buffers."""
        member, self._due = self._due, None
        if member is not None and member.holds is not None:
            self._under_way = member
            self.neighbour.sweep()
            self._snapshots.begin(member.protected, member.holds, self.neighbour.send)

    def finish(self) -> None:
        """Before state changes. That a copy failed is said, and costs nothing else until it is needed. If it was cut
        short by a recovery, the step counts when the world has resumed and the copy is there."""
        self.begin_due()
        member, self._under_way = self._under_way, None
        if member is None:
            return
        trouble = self._snapshots.finish()
        elsewhere = self.neighbour.take_trouble()
        if self.neighbour.interrupted and (self.neighbour.given_up or member.lost_contact()):
            return
        member.ledger.saved()
        if (trouble or elsewhere) is not None and not self._complained:
            self._complained = True
            what = "could not be saved in peer memory, and is not covered" if trouble else "has no copy on another host"
            member.note(f"rank {member.world.rank} {what}: {trouble or elsewhere}")

    def steps(self) -> tuple[StepNumber, ...]:
        """States that can be brought back."""
        self.finish()
        return tuple(map(StepNumber, self._snapshots.steps()))

    def bring_back(self, member: "Member", step: int) -> None:
        copy = self._snapshots.read(step)
        member.holds = None  # torn until it is all there
        bring_back(member.protected, copy)
        member.own_state.go_back()
        member.holds = StepNumber(step)
        member.ledger.inherited(member.protected, member.generation, step - 1)

    def forget_after(self, member: "Member", step: int) -> None:
        self.finish()
        self._snapshots.forget_after(step)
        self.neighbour.forget_after(step)
        member.ledger.forget_after(step)
