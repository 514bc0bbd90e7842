"""When a rank's state goes to disk, and how it comes back: in a recovery that has nothing better, or in another run.

Saving happens beside the training (`state.checkpoint.save`); that a save failed is said, and nothing else. In a
recovery a rank looks at the disk only when it is asked to, which is when nothing better is left; then a slow disk is
waited for. Where the job begins is one rank's choice, which the others read from the store: what is whole must look the
same to all.
"""

from collections.abc import Callable
from pathlib import Path

from understudy.errors import CheckpointError
from understudy.foundation.ids import StepNumber
from understudy.groups.fence import Fences
from understudy.groups.world import World
from understudy.state.checkpoint.folders import newest_sound, step_folder, whole_checkpoints
from understudy.state.checkpoint.load import load_checkpoint
from understudy.state.checkpoint.save import CheckpointSaver, Failed, Saved, Skipped
from understudy.state.protected_state import Protected
from understudy.training.rank_local.state import RankLocalState
from understudy.training.status import MemberStatus
from understudy.training.step_ledger import StepLedger

_NONE = "-1"
_LAST_SAVE = 60.0  # seconds that the end of a script waits for


class Checkpointing:
    """Of one member. `folder` None: nothing is saved, and nothing looked for. `run`: equal on all ranks of one run."""

    def __init__(
        self,
        folder: Path | None,
        every: int,
        run: str,
        *,
        status: MemberStatus,
        world: World,
        fences: Fences,
        protected: Protected,
        rank_local: RankLocalState,
        ledger: StepLedger,
        note: Callable[[str], None],
    ) -> None:
        self._folder, self._every, self._run = folder, every, run
        self._status, self._world, self._fences = status, world, fences
        self._protected, self._rank_local, self._ledger, self._note = protected, rank_local, ledger, note
        self._saver: CheckpointSaver | None = None
        self._damaged: set[int] = set()
        self._trouble: str | None = None  # of the last look
        self._said, self._unsaid = "", 0  # why the last one was not written, and how many more were not for that reason

    # -- saving -------------------------------------------------------------------------------------------------------

    def due(self, holds: int) -> bool:
        return self._folder is not None and self._every > 0 and holds % self._every == 0

    def after_commit(self) -> None:
        if self._folder is None:
            return
        self._tell_outcomes()
        assert self._status.holds is not None
        if not self.due(self._status.holds):
            return
        if self._fences.absent:
            self._note("no checkpoint is written while ranks are absent")
            return
        if self._saver is None:
            self._saver = CheckpointSaver(self._folder, self._world.rank, self._world.size)
        attempt = f"{self._run}/{self._status.generation}"
        self._saver.begin(self._protected, self._status.holds, attempt=attempt, rank_local=self._rank_local.pack())

    def _tell_outcomes(self) -> None:
        if self._trouble is not None:
            self._note(f"{self._folder} could not be looked at in a recovery: {self._trouble}")
            self._trouble = None
        while self._saver is not None and (outcome := self._saver.poll()) is not None:
            match outcome:
                case Saved(remarks=remarks):
                    for remark in remarks:
                        self._note(f"the checkpoint before step {outcome.step} is whole, but {remark}")
                    if self._unsaid:
                        self._note(f"{self._unsaid} more were not written; the one before step {outcome.step} is whole")
                    self._said, self._unsaid = "", 0
                case Failed() | Skipped() if outcome.reason == self._said:
                    self._unsaid += 1
                case Failed() | Skipped():
                    self._note(f"there is no checkpoint before step {outcome.step}: {outcome.reason}")
                    self._said = outcome.reason

    def new_generation(self) -> None:
        """A save that was under way may wait for a rank that is gone."""
        if self._saver is not None:
            self._saver.close(0.0)
            self._tell_outcomes()
            self._saver = None

    def finish(self) -> None:
        if self._saver is not None:
            self._saver.close(_LAST_SAVE)
            self._tell_outcomes()
            self._saver = None

    # -- loading ------------------------------------------------------------------------------------------------------

    def steps(self) -> tuple[StepNumber, ...]:
        """States that can be loaded, as far as a quick look tells. It takes as long as the disk takes."""
        if self._folder is None:
            return ()
        try:
            whole = {step for step, _ in whole_checkpoints(self._folder)}
        except OSError as error:
            self._trouble = error.strerror or str(error)
            return ()
        return tuple(StepNumber(step) for step in sorted(whole - self._damaged))

    def load(self, step: int) -> None:
        """In the place of whatever this member holds. CheckpointError when it turns out to be damaged."""
        assert self._folder is not None
        self._status.holds = None  # torn until it is all there
        try:
            loaded = load_checkpoint(
                step_folder(self._folder, step), self._protected, rank=self._world.rank, world_size=self._world.size
            )
        except CheckpointError:
            self._damaged.add(step)
            raise
        self._rank_local.unpack(loaded.rank_local)
        for note in loaded.notes:
            self._note(note)
        self._status.holds = StepNumber(step)
        self._ledger.inherited(self._protected, self._status.generation, step - 1)

    def resume(self) -> None:
        """A job begins: with what an earlier run has left, if there is something."""
        if self._folder is None:
            return
        key = f"resume/{self._status.founded_in}"
        if self._world.rank == 0:
            found, passed_over = newest_sound(self._folder)
            for broken in passed_over:
                self._note(f"{broken.path} is not used: {broken.trouble}")
            self._world.store.set(key, _NONE if found is None else str(found.step))
        step = int(self._world.store.get(key))
        if step >= 0:
            self.load(step)
