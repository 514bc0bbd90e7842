"""What a person sees while a job runs: start, members, progress, one block per recovery, the end.

Plain lines begin with `understudy:` and go to stderr, so the script's stdout stays its own. On a terminal one live line
stands below the output; it is taken away before anything else is written and drawn again afterwards.
"""

import asyncio
import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from understudy.agent.logs import Std
from understudy.ledger.records import DecisionRecord, RecoveryRecord
from understudy.protocol.advice import advice_on
from understudy.protocol.commands import DecisionKind, Outcome, StopJob
from understudy.protocol.sentences import lines
from understudy.protocol.stages import Stage

IN_DOUBT = "see the reason above and the story of the run"
_PLAIN_EVERY = 10.0  # seconds between two progress lines
_LOOK_EVERY = 0.25
_SHOWN = {
    DecisionKind.WARN.value,
    DecisionKind.PLAN.value,
    DecisionKind.NO_MOVE.value,
    DecisionKind.DEVICE.value,
    DecisionKind.REFUSE.value,
    DecisionKind.CORRUPT.value,
    DecisionKind.CHECKPOINT.value,
    DecisionKind.DEGRADE.value,
    DecisionKind.MOVE.value,
    DecisionKind.RESTART.value,
    DecisionKind.STEP_DOWN.value,
    DecisionKind.SWAP.value,
    DecisionKind.ALARM.value,
    DecisionKind.WAIT.value,
    DecisionKind.KILL.value,
    DecisionKind.START_OVER.value,
    DecisionKind.NO_REFILL.value,
    DecisionKind.REFILL.value,
}
_PHASES = ("detect", "approach", "stop", "rehearse", "regroup", "transfer", "resume")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The state of a job at one moment."""

    stage: str
    generation: int
    step: int | None
    ranks_up: int
    world_size: int
    spares_warm: int
    spares_starting: int

    @property
    def members(self) -> str:
        spares = f"spares: {self.spares_warm} warm"
        warming = f", {self.spares_starting} warming up" if self.spares_starting else ""
        return f"ranks {self.ranks_up}/{self.world_size} up, {spares}{warming}"


class Terminal:
    """Plain lines. Also a journal of the coordinator: every decision passes by here."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._began = time.monotonic()
        self._last_members = ""
        self._pace = _Pace()

    # -- the job's life -----------------------------------------------------------------------------------------------

    def begin(self, command: tuple[str, ...], world_size: int, spares: int, remarks: Iterable[str]) -> None:
        ranks = f"{world_size} rank{'s' if world_size != 1 else ''}, {spares} spare{'s' if spares != 1 else ''}"
        self.tell("starting", f"starting {ranks}: {shlex.join(command)}")
        self.say(f"run folder {self._run_dir}")
        for remark in remarks:
            self.say(remark)

    def end(self, stop: StopJob) -> None:
        if stop.outcome is Outcome.SUCCEEDED:
            self.say(f"finished in {self._elapsed()}; ledger in {self._run_dir}")
        else:
            self._write(_block(end_lines(stop, self._run_dir)))

    async def keep_showing(self, view: Callable[[], View]) -> None:
        next_line = time.monotonic() + _PLAIN_EVERY
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            now = view()
            self._pace.look(time.monotonic(), now.step)
            self._show_members(now)
            if time.monotonic() >= next_line:
                next_line = time.monotonic() + _PLAIN_EVERY
                self._show_progress(now)

    def close(self) -> None:
        pass

    # -- what happens -------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        self.tell("note", text)

    def tell(self, _code: str, text: str, /, **_: object) -> None:
        """A person needs the text only."""
        self._write(_block([text]))

    def append(self, record: DecisionRecord | RecoveryRecord) -> None:
        if isinstance(record, RecoveryRecord):
            self._write(_block(recovery_lines(record)))
        elif record.kind in _SHOWN:
            self.say(f"{record.kind}: {record.reason} (generation {record.generation})")

    def output(self, stream: Std, data: bytes) -> None:
        """What a worker wrote, when it comes through us."""
        file = sys.stdout if stream is Std.OUT else sys.stderr
        with contextlib.suppress(OSError):  # its reader is gone; the training goes on
            file.buffer.write(data)
            file.buffer.flush()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _show_members(self, view: View) -> None:
        if view.members != self._last_members and view.ranks_up == view.world_size:
            self._last_members = view.members
            self.tell("members", view.members)

    def _show_progress(self, view: View) -> None:
        self.tell("progress", f"{self.progress_text(view)} | {view.members}", step=view.step)

    def progress_text(self, view: View) -> str:
        if view.step is None:
            return f"{view.stage} | generation {view.generation} | {self._elapsed()}"
        pace = self._pace.per_second
        speed = "" if pace is None else f" | {pace:.3g} steps/s"
        return f"step {view.step}{speed} | {view.stage} | generation {view.generation} | {self._elapsed()}"

    def _elapsed(self) -> str:
        seconds = time.monotonic() - self._began
        if seconds < 60:
            return f"{seconds:.1f} s"
        return f"{int(seconds) // 3600}:{int(seconds) % 3600 // 60:02}:{int(seconds) % 60:02}"

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()


class LiveTerminal(Terminal):
    """A person looks on: blocks are drawn with colour, and one line is always current."""

    _ERASE = "\r\x1b[2K"

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir)
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._line = ""
        self._drawn = False

    def output(self, stream: Std, data: bytes) -> None:
        self._erase()
        super().output(stream, data)
        self._draw()

    def close(self) -> None:
        self._erase()
        self._line = ""

    def _show_members(self, view: View) -> None:
        """Part of the live line, which this draws."""
        self._line = self._current(view)
        self._erase()
        self._draw()

    def _current(self, view: View) -> str:
        """Short, for 80 columns."""
        pace = self._pace.per_second
        step = "" if view.step is None else f"step {view.step} | {pace or 0:.3g} steps/s | "
        stage = "" if view.stage == Stage.TRAINING.value else f"{view.stage} | "
        warming = f"+{view.spares_starting}" if view.spares_starting else ""
        members = f"ranks {view.ranks_up}/{view.world_size} | spares {view.spares_warm}{warming}"
        return f"{step}{stage}generation {view.generation} | {members} | {self._elapsed()}"

    def _show_progress(self, view: View) -> None:
        pass

    def _write(self, text: str) -> None:
        self._erase()
        with contextlib.suppress(OSError):
            self._console.out(text, style="bold cyan", end="")
        self._draw()

    def _erase(self) -> None:
        if self._drawn:
            self._drawn = False
            with contextlib.suppress(OSError):
                sys.stderr.write(self._ERASE)
                sys.stderr.flush()

    def _draw(self) -> None:
        if self._line:
            self._drawn = True
            with contextlib.suppress(OSError):
                self._console.out(self._line[: self._console.width - 1], style="dim", end="")
                sys.stderr.flush()


class _Pace:
    """Steps per second over the last looks."""

    def __init__(self) -> None:
        self._looks: list[tuple[float, int]] = []

    def look(self, at: float, step: int | None) -> None:
        if step is None:
            return
        self._looks = [look for look in self._looks if at - look[0] <= _PLAIN_EVERY][-64:]
        self._looks.append((at, step))

    @property
    def per_second(self) -> float | None:
        if len(self._looks) < 2:
            return None
        (first_at, first), (last_at, last) = self._looks[0], self._looks[-1]
        return max(0, last - first) / (last_at - first_at) if last_at > first_at else None


def make_terminal(live: bool, run_dir: Path) -> Terminal:
    return LiveTerminal(run_dir) if live else Terminal(run_dir)


def _block(lines: Iterable[str]) -> str:
    return "".join(f"understudy: {line}\n" for line in lines)


def recovery_lines(record: RecoveryRecord) -> list[str]:
    """Which member was lost and why, the verdict, the new member, the times."""
    total = record.phases.get("total", record.at - record.opened_at)
    word = "moved, with a pause of" if record.planned else "recovered in"
    shown = [f"--- {word} {total * 1000:.0f} ms: resumed at step {record.step}, generation {record.generation}"]
    shown += [f"    {reason}" for reason in record.reasons]
    shown.append(f"    verdict  {record.verdict}")
    for rank, old, new in record.swaps:
        shown.append(f"    rank {rank}   {old or 'no member'} -> {new}")
    if not record.swaps:
        shown.append("    no member was replaced")
    phases = [f"{name} {record.phases[name] * 1000:.0f}" for name in _PHASES if name in record.phases]
    received = f"; {record.received_bytes / 1e6:.1f} MB received" if record.received_bytes else ""
    shown.append(f"    ms       {' | '.join(phases)}{received}")
    return shown


def end_lines(stop: StopJob, run_dir: Path) -> list[str]:
    """What happened, what was decided and why, what to do, where to look."""
    word = "stopped" if stop.outcome is Outcome.STOPPED else "failed"
    shown = [f"--- the job {word} (exit code {stop.exit_code})"]
    why = lines(stop.reason)
    shown += [f"    why      {why[0]}", *(f"             {line}" for line in why[1:])]
    if stop.outcome is Outcome.FAILED:
        shown.append(f"    to do    {advice_on(stop.reason, IN_DOUBT)}")
    return [*shown, f"    run      {run_dir}", f"    more     understudy explain {shlex.quote(str(run_dir))}"]
