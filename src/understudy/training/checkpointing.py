"""When a rank's state goes to disk, and how it comes back: in a recovery that has nothing better, or in another run.

Saving happens beside the training (`state.durable`); that a save failed is said, and nothing else. In a recovery nobody
looks at the disk before it is asked to, which is when nothing better is left; then a slow disk is waited for. Where the
job begins is one rank's choice, which the others read from the store: what is whole must look the same to all.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from understudy.errors import CheckpointError
from understudy.foundation.ids import StepNumber
from understudy.state.checkpoint_folders import newest_sound, step_folder, whole_checkpoints
from understudy.state.durable import DurableSaver, Failed, Saved, Skipped
from understudy.state.restoring import load_checkpoint

if TYPE_CHECKING:
    from understudy.training.member import Member

_NONE = "-1"
_LAST_SAVE = 60.0  # seconds that the end of a script waits for


class Checkpointing:
    """Of one member. `folder` None: nothing is saved, and nothing looked for. `run`: equal on all ranks of one run."""

    def __init__(self, folder: Path | None, every: int, run: str) -> None:
        self._folder, self._every, self._run = folder, every, run
        self._saver: DurableSaver | None = None
        self._damaged: set[int] = set()
        self._trouble: str | None = None  # of the last look
        self._said, self._unsaid = "", 0  # why the last one was not written, and how many more were not for that reason

    # -- saving -------------------------------------------------------------------------------------------------------

    def after_commit(self, member: "Member") -> None:
        if self._folder is None:
            return
        self._tell_outcomes(member)
        assert member.holds is not None
        if not self._every or member.holds % self._every:
            return
        if member.fences.absent:
            member.note("no checkpoint is written while ranks are absent")
            return
        if self._saver is None:
            self._saver = DurableSaver(self._folder, member.world.rank, member.world.size)
        attempt = f"{self._run}/{member.generation}"
        self._saver.begin(member.protected, member.holds, attempt=attempt, keepsake=member.own_state.pack())

    def _tell_outcomes(self, member: "Member") -> None:
        if self._trouble is not None:
            member.note(f"{self._folder} could not be looked at in a recovery: {self._trouble}")
            self._trouble = None
        while self._saver is not None and (outcome := self._saver.poll()) is not None:
            match outcome:
                case Saved(remarks=remarks):
                    for remark in remarks:
                        member.note(f"the checkpoint before step {outcome.step} is whole, but {remark}")
                    if self._unsaid:
                        member.note(
                            f"{self._unsaid} more were not written; the one before step {outcome.step} is whole"
                        )
                    self._said, self._unsaid = "", 0
                case Failed() | Skipped() if outcome.reason == self._said:
                    self._unsaid += 1
                case Failed() | Skipped():
                    member.note(f"there is no checkpoint before step {outcome.step}: {outcome.reason}")
                    self._said = outcome.reason

    def new_generation(self, member: "Member") -> None:
        """A save that was under way may wait for a rank that is gone."""
        if self._saver is not None:
            self._saver.close(0.0)
            self._tell_outcomes(member)
            self._saver = None

    def finish(self, member: "Member") -> None:
        if self._saver is not None:
            self._saver.close(_LAST_SAVE)
            self._tell_outcomes(member)
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

    def load(self, member: "Member", step: int) -> None:
        """In the place of whatever this member holds. CheckpointError when it turns out to be damaged."""
        assert self._folder is not None
        member.holds = None  # torn until it is all there
        try:
            loaded = load_checkpoint(
                step_folder(self._folder, step), member.protected, rank=member.world.rank, world_size=member.world.size
            )
        except CheckpointError:
            self._damaged.add(step)
            raise
        member.own_state.unpack(loaded.keepsake)
        for note in loaded.notes:
            member.note(note)
        member.holds = StepNumber(step)
        member.ledger.inherited(member.protected, member.generation, step - 1)

    def resume(self, member: "Member") -> None:
        """A job begins: with what an earlier run has left, if there is something."""
        if self._folder is None:
            return
        key = f"resume/{member.founded_in}"
        if member.world.rank == 0:
            found, passed_over = newest_sound(self._folder)
            for broken in passed_over:
                member.note(f"{broken.path} is not used: {broken.trouble}")
            member.world.store.set(key, _NONE if found is None else str(found.step))
        step = int(member.world.store.get(key))
        if step >= 0:
            self.load(member, step)
