"""Plays one day: starts the job, disturbs it, and judges how it ended."""

import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from understudy.ledger.reading import Run, read_run
from understudy_testkit.faults.assertions import NotProven, require_identical
from understudy_testkit.faults.ordinary.days import Row
from understudy_testkit.faults.watching import LiveRun

_SCRIPT = ("-m", "understudy_testkit.faults.ordinary.script")


@dataclass(frozen=True, slots=True)
class Ended:
    exit_code: int
    output: str
    run_dir: Path
    seconds: float

    @property
    def run(self) -> Run:
        return read_run(self.run_dir)

    def parameters(self) -> dict[int, str]:
        """What each rank said of its parameters at its end."""
        found = re.findall(r"final (\d+) (\w{64})", self.output)
        return {int(rank): digest for rank, digest in found}


@dataclass(slots=True)
class References:
    """Runs without trouble, one for every shape and size; made when they are needed first."""

    folder: Path
    _made: dict[str, Ended] = field(default_factory=dict)
    _locks: dict[str, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def folder_of(self, row: Row) -> Path:
        return self.folder / f"{row.shape}-{row.ranks}-{row.steps}"

    def of(self, row: Row) -> Ended:
        key = self.folder_of(row).name
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._made:
                bare = replace(row, name="reference", disturb=(), flags=(), act=None, spares=0, step_time=0.0)
                self._made[key] = _perform(self.folder / key, bare)
                if self._made[key].exit_code != 0:
                    raise NotProven(f"the run without trouble failed:\n{self._made[key].output[-2000:]}")
        return self._made[key]


def play(folder: Path, row: Row, references: References) -> str:
    """A sentence on how it ended; NotProven if it did not end as it must."""
    if row.play is not None:
        return row.play(folder)
    with row.mount(folder / "disk"):
        ended = _perform(folder, row)
        if row.refused:
            return _refused(row, ended)
        if ended.exit_code != 0:
            raise NotProven(f"the job was lost (exit code {ended.exit_code}):\n{ended.output[-3000:]}")
        if row.says and row.says not in ended.output:
            raise NotProven(f"no line said {row.says!r}")
        _check_proofs(folder, row)
        if row.swap_refused:
            if row.swap_refused not in ended.output:
                raise NotProven(f"the swap was not refused with {row.swap_refused!r}:\n{ended.output[-3000:]}")
            return f"swap refused: {row.swap_refused}; went on without, {ended.seconds:.0f} s"
        reference = references.of(row)
        if row.by_parameters:
            if ended.parameters() != reference.parameters() or len(ended.parameters()) != row.ranks:
                raise NotProven("the parameters differ from those of the run without trouble")
            return f"identical parameters, {ended.seconds:.0f} s"
        require_identical(reference.run, ended.run, row.name)
        _compare_evaluations(references.folder_of(row), folder)
        return f"identical{_check_replaced(row, ended.run)}, {ended.seconds:.0f} s"


def _perform(folder: Path, row: Row) -> Ended:
    folder.mkdir(parents=True, exist_ok=True)
    flags = tuple(flag.replace("{disk}", str(folder / "disk")) for flag in row.flags)
    run_dir = Path(flags[flags.index("--run-dir") + 1]) if "--run-dir" in flags else folder / "run"
    command = [
        *(sys.executable, "-m", "understudy", "run", "--no-progress", "--ledger-digest-every", "1"),
        *(() if "--run-dir" in flags else ("--run-dir", str(run_dir))),
        *("--nproc-per-node", str(row.ranks), "--spares", str(row.spares), *flags, *_SCRIPT),
        *("--shape", row.shape, "--steps", str(row.steps), "--step-time", str(row.step_time)),
        *("--proofs", str(folder / "proofs"), *(("--disturb", *row.disturb) if row.disturb else ())),
    ]
    began = time.monotonic()
    with LiveRun(command, run_dir, folder / "output.txt", row.ranks) as job:
        if row.act is not None:
            row.act(folder / "disk")(job)
        try:
            code = job.process.wait(row.longest)
        except subprocess.TimeoutExpired:
            tail = (folder / "output.txt").read_text(errors="replace")[-3000:]
            raise NotProven(f"it did not end within {row.longest:g} s:\n{tail}") from None
    output = (folder / "output.txt").read_text(errors="replace")
    return Ended(code, output, run_dir, time.monotonic() - began)


def _refused(row: Row, ended: Ended) -> str:
    if ended.exit_code == 0:
        raise NotProven(f"it was not refused:\n{ended.output[-2000:]}")
    if row.refused not in ended.output:
        raise NotProven(f"it ended without the words {row.refused!r}:\n{ended.output[-3000:]}")
    return f"refused: {row.refused}, {ended.seconds:.0f} s"


def _compare_evaluations(reference: Path, folder: Path) -> None:
    """What each rank has found in each evaluation."""
    for wanted in (reference / "proofs").glob("evaluation-*"):
        found = folder / "proofs" / wanted.name
        if not found.exists() or found.read_text() != wanted.read_text():
            raise NotProven(f"{wanted.name}: {found.read_text() if found.exists() else 'not there'}")


def _check_proofs(folder: Path, row: Row) -> None:
    wanted = sum(len(text.rpartition(":")[2].split(",")) for text in row.disturb)
    found = len(list((folder / "proofs").glob("*.json"))) if (folder / "proofs").exists() else 0
    if found != wanted:
        raise NotProven(f"{found} of {wanted} disturbances happened")


def _check_replaced(row: Row, run: Run) -> str:
    """No rank was ended that should not have been."""
    replaced = sorted({rank for recovery in run.recoveries for rank, _, _ in recovery.swaps})
    if missing := [rank for rank in row.replaced if rank not in replaced]:
        raise NotProven(f"ranks {missing} were to be replaced; {replaced} were")
    if wrong := [rank for rank in replaced if rank not in (*row.replaced, *row.may_replace)]:
        reasons = "; ".join(reason for recovery in run.recoveries for reason in recovery.reasons)
        raise NotProven(f"ranks {wrong} were replaced without need: {reasons}")
    found = [recovery.phases.get("detect", 0.0) for recovery in run.recoveries]
    if row.found_within is not None and found and max(found) > row.found_within:
        raise NotProven(f"found after {max(found):.1f} s instead of {row.found_within:g} s")
    return f", ranks {replaced} replaced, found after {max(found):.1f} s" if replaced else ""
