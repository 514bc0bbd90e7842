"""Moves the step records of this host's workers from their spools to the run's folder, in a thread of its own.

The loop of the agent never waits for it. A disk that takes nothing keeps records in shared memory, up to a limit that
the workers themselves keep (`ledger.spool`); they are moved when it works again.

Knows: whose records go to which file. Does not know: what is in them. Called by the supervisor.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from understudy.files.append_file import AppendFile
from understudy.files.background import until_written
from understudy.files.troubles import DiskTroubles
from understudy.foundation.ids import MemberId
from understudy.ledger.spool import Spool
from understudy.ledger.writing import gap_line, mark_of, steps_file

_EVERY = 0.2  # seconds between two rounds
_RETRY = 1.0  # seconds until a file that could not be written is tried again
_MARK_TIMEOUT = 0.5  # seconds, at the end of a job


@dataclass(slots=True)
class _Move:
    """One member's records on their way. `final`: its writer has ended."""

    spool: Spool
    file: AppendFile
    final: bool = False
    not_before: float = 0.0


class SpoolMover:
    """`folder`: where workers write. `ledger`: where it goes. `remade`: called when that folder had to be made."""

    def __init__(
        self, folder: Path, ledger: Path, troubles: DiskTroubles, remade: Callable[[], object] = lambda: None
    ) -> None:
        self._folder, self._ledger, self._troubles, self._remade = folder, ledger, troubles, remade
        self._moves: dict[MemberId, _Move] = {}
        self._wanted = threading.Event()  # a round now, and not only after a while
        self._stopped = False
        self._thread: threading.Thread | None = None

    # -- what the supervisor calls ------------------------------------------------------------------------------------

    def expect(self, member: MemberId) -> None:
        """It may write from now on."""
        file = AppendFile(
            steps_file(self._ledger, member),
            gap=gap_line,
            whole_lines=True,
            listener=self._troubles,
            mark=mark_of(self._ledger, member),
            remade=self._remade,
        )
        self._troubles.watch(file)
        self._moves[member] = _Move(Spool(self._folder, member), file)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="understudy-spools", daemon=True)
            self._thread.start()

    def ended(self, member: MemberId) -> None:
        """Its process is gone: what is there is all there will be."""
        move = self._moves.get(member)
        if move is not None:
            move.final = True
            self._wanted.set()

    async def drain(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> list[str]:
        """All processes have ended: wait until everything is moved (`files.until_written`). Returns what is missing."""
        for member in list(self._moves):
            self.ended(member)
        await until_written(lambda: [move.file for move in list(self._moves.values())], seconds, enough)
        self._stopped = True
        return [self._give_up(move) for move in list(self._moves.values())]

    def _give_up(self, move: _Move) -> str:
        move.file.lose(patience=_MARK_TIMEOUT)
        return f"{move.file.path} ({move.file.trouble or 'there was not enough time'})"

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped:
            self._wanted.wait(_EVERY)
            self._wanted.clear()
            for member, move in list(self._moves.items()):
                if time.monotonic() >= move.not_before:
                    self._move(member, move)

    def _move(self, member: MemberId, move: _Move) -> None:
        final = move.final  # asked first: what was written before the end is there
        try:
            if self._move_lines(move, final) and final:
                self._finish(member, move)
        except OSError as error:  # of the spool, which is in shared memory
            move.file.fail(error.strerror or str(error))
            move.not_before = time.monotonic() + _RETRY

    def _move_lines(self, move: _Move, final: bool) -> bool:
        """True when there are no more."""
        while chunk := move.spool.peek(final):
            if not move.file.append(chunk):
                move.not_before = time.monotonic() + _RETRY
                return False
            move.spool.taken(len(chunk))
        return True

    def _finish(self, member: MemberId, move: _Move) -> None:
        if move.spool.lacks_records:
            move.file.lose()
        move.file.close()
        move.spool.remove()
        self._troubles.forget(move.file)
        del self._moves[member]
