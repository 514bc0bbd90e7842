"""Strikes the planned faults from outside, the same way for every arm, and proves that each has fired."""

import contextlib
import os
import signal
import time

import msgspec

from understudy.detection.process_state import process_state
from understudy_testkit.benchmark.recording import Board
from understudy_testkit.benchmark.scenario import FaultKind, PlannedFault, Scenario

_SLOW_PERIOD = 0.1
_PROOF_TIMEOUT = 2.0


class FiredFault(msgspec.Struct, frozen=True, kw_only=True):
    """`at`: when the signal was sent. `proof`: what was seen of the process afterwards."""

    planned: PlannedFault
    at: float
    pid: int
    proof: str


class FaultInjector:
    """Call `look` often. A fault waits until its step is reached and a living process holds its rank."""

    def __init__(self, scenario: Scenario, board: Board) -> None:
        self._scenario, self._board = scenario, board
        self._planned = list(scenario.schedule())
        self._due: float | None = None
        self._later: list[tuple[float, int, signal.Signals]] = []  # signals that belong to a fault that has fired
        self.fired: list[FiredFault] = []

    @property
    def remaining(self) -> int:
        return len(self._planned)

    def look(self) -> None:
        now = time.monotonic()
        self._send_what_is_due(now)
        if not self._planned:
            return
        fault = self._planned[0]
        if self._due is None:
            if max(self._board.look(rank)[1] for rank in range(self._scenario.work.ranks)) < fault.step:
                return
            self._due = now + fault.delay
        pid, step = self._board.look(fault.rank)
        if now >= self._due and step >= 0 and process_state(pid) not in ("", "Z", "X", "T"):
            self._planned.pop(0)
            self._due = None
            self.fired.append(self._strike(fault, pid))

    def _strike(self, fault: PlannedFault, pid: int) -> FiredFault:
        at = time.monotonic()
        match fault.kind:
            case FaultKind.KILL:
                os.kill(pid, signal.SIGKILL)
                proof = _wait_for(pid, ("", "Z", "X"))
            case FaultKind.GRACEFUL:
                os.kill(pid, signal.SIGTERM)
                self._later.append((at + self._scenario.faults.notice, pid, signal.SIGKILL))
                proof = "SIGTERM sent"
            case FaultKind.HANG:
                os.kill(pid, signal.SIGSTOP)
                proof = _wait_for(pid, ("T",))
            case FaultKind.SLOW:
                os.kill(pid, signal.SIGSTOP)
                proof = _wait_for(pid, ("T",))
                for beat in range(1, int(self._scenario.faults.slow_seconds / _SLOW_PERIOD)):
                    sign = signal.SIGCONT if beat % 2 else signal.SIGSTOP
                    self._later.append((at + beat * _SLOW_PERIOD, pid, sign))
                self._later.append((at + self._scenario.faults.slow_seconds, pid, signal.SIGCONT))
        return FiredFault(planned=fault, at=at, pid=pid, proof=proof)

    def _send_what_is_due(self, now: float) -> None:
        due = [entry for entry in self._later if entry[0] <= now]
        self._later = [entry for entry in self._later if entry[0] > now]
        for _, pid, number in due:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _wait_for(pid: int, states: tuple[str, ...]) -> str:
    deadline = time.monotonic() + _PROOF_TIMEOUT
    while (state := process_state(pid)) not in states:
        if time.monotonic() > deadline:
            return f"NOT PROVEN: process {pid} is still in state {state}"
        time.sleep(0.001)
    return f"process {pid} is {'gone' if state == '' else f'in state {state}'}"
