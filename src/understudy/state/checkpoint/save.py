"""Saves a rank's state where it outlives all processes, beside the training and without disturbing it.

`begin` copies the state into host memory; the rest happens in a thread. Ranks agree on which rank writes what through
files in the checkpoint's own folder, and not by collectives: a rank that dies there can block neither training nor the
end of another. A rank that waits in vain gives up after a while. Whatever goes wrong is told by `poll` as a value.

The training loop calls this, the same on every rank. When to save is not decided here.
"""

import collections
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from understudy.errors import CheckpointError
from understudy.foundation.clock import Clock, SystemClock
from understudy.state.checkpoint.dcp_format import write_metadata, write_share
from understudy.state.checkpoint.folders import (
    FORMAT,
    Part,
    describe_file,
    plan_file,
    prune,
    rank_file,
    seal,
    step_folder,
    sync_folder,
    unseal,
    write_at_once,
)
from understudy.state.checkpoint.names import box_of, entries_of
from understudy.state.checkpoint.plan import Piece, Plan, Share, divide
from understudy.state.digests import digest_one, digest_text
from understudy.state.protected_state import Protected, local

_LOOK = 0.05
"""Seconds between two looks at what the other ranks have written."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The checkpoint is whole. `bytes`: what this rank wrote of it. `removed`: older ones that are no longer kept.
    `remarks`: what went wrong afterwards and does not touch it."""

    step: int
    path: Path
    bytes: int
    seconds: float
    removed: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no whole checkpoint of this step, as far as this rank can tell. Training is not touched by it."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """Nothing was tried."""

    step: int
    reason: str


Outcome = Saved | Failed | Skipped


class CheckpointSaver:
    """Of one rank. `keep`: how many whole checkpoints stay (rank 0 removes older ones). `patience`: seconds after which
    a rank that does not do its part is no longer waited for."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        world_size: int,
        *,
        keep: int = 2,
        patience: float = 300.0,
        clock: Clock | None = None,
    ) -> None:
        if keep < 1:
            raise ValueError("at least one checkpoint must be kept")
        self._folder, self._rank, self._world_size, self._keep = Path(folder), rank, world_size, keep
        self._patience, self._clock = patience, clock or SystemClock()
        self._outcomes: collections.deque[Outcome] = collections.deque()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._running: int | None = None

    def begin(self, protected: Protected, step: int, *, attempt: str = "", rank_local: bytes = b"") -> None:
        """Save the state as it is now. Returns when all of it has been copied; never raises.

        `step`: the next one to be run. `attempt`: equal on all ranks, and not used before for this step in this folder
        (such as the name of the run and the generation); without it what an earlier save of this step left behind can
        make this one fail. `rank_local`: small state of this rank that is not protected (random streams, the position
        of a loader)."""
        if self._running is not None:
            self._outcomes.append(Skipped(step, f"the save of step {self._running} is still under way"))
            return
        if self._stop.is_set():
            self._outcomes.append(Skipped(step, "the saver was closed"))
            return
        try:
            copy = _take_copy(protected, rank_local)
            self._thread = threading.Thread(
                target=self._save, args=(copy, step, attempt), name=f"understudy-save-{step}", daemon=True
            )
            self._running = step
            self._thread.start()
        except Exception as error:
            self._thread = self._running = None
            self._outcomes.append(Failed(step, f"the state could not be copied: {_in_words(error)}"))

    def poll(self) -> Outcome | None:
        """What became of a save, oldest first; None when there is nothing to tell."""
        return self._outcomes.popleft() if self._outcomes else None

    def close(self, timeout: float) -> None:
        """Give a running save this long to finish, then give it up. What became of it can still be polled."""
        if self._thread is not None:
            self._thread.join(timeout)
        self._stop.set()
        if self._thread is not None:
            self._thread.join(1.0)  # it looks up often; if the disk does not answer it ends with the process

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _save(self, copy: "_Copy", step: int, attempt: str) -> None:
        outcome: Outcome
        try:
            outcome = self._write(copy, step, attempt)
        except Exception as error:
            outcome = Failed(step, _in_words(error))
        self._running = None
        self._outcomes.append(outcome)

    def _write(self, copy: "_Copy", step: int, attempt: str) -> Saved:
        began = self._clock.now()
        path = step_folder(self._folder, step)
        path.mkdir(parents=True, exist_ok=True)
        sync_folder(self._folder)
        plan = Plan(
            format=FORMAT,
            step=step,
            attempt=attempt,
            rank=self._rank,
            world_size=self._world_size,
            pieces=[
                msgspec.structs.replace(piece, digest=digest_one(tensor).hex())
                for piece, tensor in zip(copy.pieces, copy.tensors, strict=True)
            ],
        )
        write_at_once(plan_file(path, self._rank), seal(plan))
        others = _Others(path, plan)
        self._wait(others.missing_plan)
        written = self._write_part(path, plan, others.joint(), divide(others.plans())[self._rank], copy)
        self._wait(others.missing_part)
        removed, remarks = self._tidy_up(path) if self._rank == 0 else ((), ())
        return Saved(step, path, written, self._clock.now() - began, removed, remarks)

    def _write_part(self, path: Path, plan: Plan, joint: str, share: Share, copy: "_Copy") -> int:
        """This rank's data, and then the file that says that they are there."""
        prefix = f"__{self._rank}_{secrets.token_hex(4)}_"
        try:
            stored = write_share(path, prefix, share, plan.pieces, copy.tensors, self._look_up)
        except Exception:
            for file in path.glob(f"{prefix}*"):
                file.unlink(missing_ok=True)  # the disk may be full
            raise
        lines = [describe_file(path / name) for name in sorted({each.file for each in stored})]
        part = Part(
            format=FORMAT,
            step=plan.step,
            rank=self._rank,
            world_size=self._world_size,
            joint=joint,
            stored=stored,
            elsewhere=share.elsewhere,
            files=lines,
        )
        sync_folder(path)
        write_at_once(rank_file(path, self._rank), seal(part))
        for file in path.glob(f"__{self._rank}_*"):
            if not file.name.startswith(prefix):
                file.unlink(missing_ok=True)  # of an earlier save of this step
        return sum(line.size for line in lines)

    def _tidy_up(self, path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What was removed, and what went wrong. The checkpoint is whole already."""
        try:
            write_metadata(path)
            sync_folder(path)  # before anything older goes
            return tuple(prune(self._folder, self._keep)), ()
        except Exception as error:
            return (), (f"tidying up failed: {_in_words(error)}",)

    def _wait(self, missing: Callable[[], str | None]) -> None:
        """Until nothing is missing any more. Raises with what still is when patience is at its end."""
        end = self._clock.now() + self._patience
        while (what := missing()) is not None:
            if self._clock.now() >= end:
                raise CheckpointError(f"{what} within {self._patience:g} s")
            if self._stop.wait(_LOOK):
                raise CheckpointError(f"the saver was closed, and {what} until then")

    def _look_up(self) -> None:
        if self._stop.is_set():
            raise CheckpointError("the saver was closed before everything was written")


class _Others:
    """What all ranks have put into the folder of one save so far."""

    def __init__(self, path: Path, own: Plan) -> None:
        self._path, self._own = path, own
        self._plans: dict[int, tuple[str, Plan]] = {}
        self._finished: set[int] = set()

    def missing_plan(self) -> str | None:
        for rank in range(self._own.world_size):
            if rank not in self._plans and not self._read_plan(rank):
                return f"rank {rank} did not say what it holds"
        return None

    def _read_plan(self, rank: int) -> bool:
        try:
            content = plan_file(self._path, rank).read_bytes()
            plan = unseal(content, Plan)
        except (FileNotFoundError, CheckpointError):  # what cannot be read is of an earlier save, too
            return False
        own = self._own
        if (plan.format, plan.step, plan.attempt) != (own.format, own.step, own.attempt):
            return False  # of an earlier save
        if (plan.rank, plan.world_size) != (rank, own.world_size):
            return False
        self._plans[rank] = (digest_text(content), plan)
        return True

    def plans(self) -> list[Plan]:
        return [self._plans[rank][1] for rank in range(self._own.world_size)]

    def joint(self) -> str:
        """Stands for the content of the whole checkpoint."""
        return digest_text("".join(self._plans[rank][0] for rank in range(self._own.world_size)).encode())

    def missing_part(self) -> str | None:
        joint = self.joint()
        for rank in range(self._own.world_size):
            if rank not in self._finished and not self._has_finished(rank, joint):
                return f"rank {rank} did not finish its part"
            self._finished.add(rank)
        return None

    def _has_finished(self, rank: int, joint: str) -> bool:
        try:
            return unseal(rank_file(self._path, rank).read_bytes(), Part).joint == joint
        except (FileNotFoundError, CheckpointError):
            return False


@dataclass(frozen=True, slots=True)
class _Copy:
    """A rank's state in host memory, and what each tensor of it is. Digests come later, in the thread."""

    pieces: list[Piece]
    tensors: list[torch.Tensor]


def _take_copy(protected: Protected, rank_local: bytes) -> _Copy:
    copy = _Copy([], [])
    names: set[str] = set()
    for entry in entries_of(protected, rank_local):
        if entry.key in names:
            raise CheckpointError(f"two things are called {entry.key}")
        names.add(entry.key)
        box = box_of(entry)
        if box is None:
            continue
        tensor = local(entry.tensor).to("cpu", copy=True)
        dtype = entry.dtype or str(tensor.dtype).removeprefix("torch.")
        shape = tuple(entry.tensor.shape)
        copy.pieces.append(Piece(entry.path, dtype, shape, *box, tensor.nbytes, "", entry.aliases))
        copy.tensors.append(tensor)
    return copy


def _in_words(error: Exception) -> str:
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
