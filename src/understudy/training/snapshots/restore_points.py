"""All earlier states of this rank to which a plan may send it: divergence snapshots, peer memory, durable checkpoints.

Says which there are, and goes back to one. Called in a recovery.
"""

from dataclasses import replace

from understudy.foundation.ids import Rank, StepNumber
from understudy.groups.engines import Engines
from understudy.protocol.commands import ResumeAt
from understudy.protocol.positions import Position
from understudy.protocol.rungs import Rung
from understudy.state.protected_state import Protected
from understudy.training.snapshots.checkpointing import Checkpointing
from understudy.training.snapshots.divergence import DivergenceSnapshots
from understudy.training.snapshots.peer_memory import PeerMemory
from understudy.training.snapshots.peer_replication import PeerReplication
from understudy.training.status import MemberStatus


class RestorePoints:
    """Of one member."""

    def __init__(
        self,
        *,
        rank: Rank,
        status: MemberStatus,
        protected: Protected,
        engines: Engines,
        divergence: DivergenceSnapshots,
        peer_memory: PeerMemory,
        replication: PeerReplication,
        checkpoints: Checkpointing,
    ) -> None:
        self._rank, self._status, self._protected, self._engines = rank, status, protected, engines
        self._divergence, self._peer_memory, self._replication = divergence, peer_memory, replication
        self._checkpoints = checkpoints

    # -- which there are ----------------------------------------------------------------------------------------------

    def added_to(self, position: Position) -> Position:
        """The report of this rank names what it can go back to. `kept`: the newest state on which all twins agreed."""
        kept, saved, keeps = self._divergence.kept, self.saved(), self.keeps_for_others()
        return replace(position, kept=kept, saved=saved, keeps=keeps)

    def saved(self) -> tuple[StepNumber, ...]:
        """In peer memory."""
        return self._peer_memory.steps()

    def keeps_for_others(self) -> tuple[tuple[Rank, StepNumber], ...]:
        """Rank and step of each copy on this host of another rank's state."""
        return self._replication.keeps()

    def durable(self) -> tuple[StepNumber, ...]:
        """On disk. It takes as long as the disk takes."""
        return self._checkpoints.steps()

    # -- going back ---------------------------------------------------------------------------------------------------

    def replaces_state(self, plan: ResumeAt) -> bool:
        """Does the plan take this rank's state from one of its own restore points?"""
        return self._from_memory(plan) or plan.rung is Rung.CHECKPOINT

    def _from_memory(self, plan: ResumeAt) -> bool:
        """A rank that receives nothing has the state, or a copy of it: one that all twins agreed on, or a saved one."""
        saved = plan.rung is Rung.PEER_MEMORY and (plan.distrust or self._status.holds != plan.step)
        return not plan.receives(self._rank) and (plan.rewind or saved)

    def go_back(self, plan: ResumeAt) -> None:
        self._engines.forget_iteration()
        if not self._from_memory(plan):
            self._status.phase("load")
            self._checkpoints.load(plan.step)
            return
        self._status.holds = None
        if plan.rewind:
            self._divergence.go_back(self._protected, plan.step)
            self._status.holds = StepNumber(plan.step)
        else:
            self._status.phase("bring back")
            self._peer_memory.bring_back(plan.step)

    def forget_after(self, plan: ResumeAt) -> None:
        """Later states than that of the plan are void."""
        if plan.distrust:
            self._divergence.forget_after(plan.step)
        self._peer_memory.forget_after(plan.step)

    def save_for_restart(self) -> None:
        """All processes begin anew. What this rank holds is saved for the process that has the rank next."""
        self._status.phase("save")
        self._engines.forget_iteration()
        self._peer_memory.save_now()

    def resumed(self) -> None:
        self._peer_memory.resumed()
        self._checkpoints.new_generation()
