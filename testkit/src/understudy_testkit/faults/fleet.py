"""Many light hosts on one coordinator: started in a few processes, watched, struck, and measured."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from understudy.foundation.parenthood import die_with
from understudy_testkit.faults.assertions import NotProven
from understudy_testkit.faults.coordinators import CoordinatorProcess

_CONNECT_TIMEOUT = 300.0
_RECOVERY_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Strike:
    """Seconds from the end of one process until every member was told, until every one had acknowledged (the first
    order to resume comes after the last acknowledgement), and until every one had its order to resume."""

    told: float
    acknowledged: float
    resumed: float


@dataclass
class Fleet:
    """`agents`: hosts with one rank each. Two hosts more offer spares."""

    coordinator: CoordinatorProcess
    agents: int
    processes: "list[subprocess.Popen[str]]"

    def ask(self, command: str) -> list[dict[str, Any]]:
        """Of all processes; they answer beside each other."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{command}\n")
            process.stdin.flush()
        return [self._answer(process) for process in self.processes]

    def _answer(self, process: "subprocess.Popen[str]") -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise NotProven("a process of light hosts has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def connected(self) -> int:
        return sum(answer["connected"] for answer in self.ask("look"))

    def wait_until_founded(self) -> float:
        """Every host is connected and the world trains. Returns the seconds that it took."""
        began = time.monotonic()
        while time.monotonic() - began < _CONNECT_TIMEOUT:
            looks = self.ask("look")
            if all(look["connected"] == look["of"] for look in looks) and self._trains(0):
                return time.monotonic() - began
            time.sleep(0.25)
        raise NotProven(f"not all hosts were connected within {_CONNECT_TIMEOUT:g} s: {looks}")

    def _trains(self, generation: int) -> bool:
        status = self.coordinator.status()
        return status["stage"] == "training" and int(status["generation"]) >= generation

    def strike(self) -> Strike:
        """Ends one member, and waits until the world trains again."""
        generation = max(look["newest"] for look in self.ask("look"))
        victim = self.processes[0]
        assert victim.stdin is not None
        victim.stdin.write("kill\n")
        victim.stdin.flush()
        at = float(self._answer(victim)["at"])
        reports = self._wait_for_resume(max(generation, 1) + 1)
        return Strike(
            told=max(report["abandoned"][1] for report in reports) - at,
            acknowledged=min(report["resumed"][0] for report in reports) - at,
            resumed=max(report["resumed"][1] for report in reports) - at,
        )

    def _wait_for_resume(self, generation: int) -> list[dict[str, Any]]:
        deadline = time.monotonic() + _RECOVERY_TIMEOUT
        while time.monotonic() < deadline:
            time.sleep(0.5)  # asking takes time from those that answer
            reports = self.ask(f"report {generation}")
            if sum(report["resumes"] for report in reports) >= self.agents and self._trains(generation):
                survivors = sum(report["heard"] for report in reports)
                if survivors < self.agents - 1:
                    raise NotProven(f"{survivors} of {self.agents - 1} survivors were told of generation {generation}")
                return reports
        raise NotProven(f"generation {generation} was not resumed within {_RECOVERY_TIMEOUT:g} s: {reports}")


@contextlib.contextmanager
def running(coordinator: CoordinatorProcess, token: str, agents: int, processes: int) -> Iterator[Fleet]:
    started: list[subprocess.Popen[str]] = []
    share = -(-agents // processes)
    try:
        for number in range(processes):
            first = number * share
            command = [
                *(sys.executable, "-m", "understudy_testkit.faults.light_hosts", "--address", coordinator.address),
                *("--token", token, "--world", str(agents), "--first", str(first), "--spare-hosts", "1"),
                *("--count", str(min(share, agents - first))),
            ]
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 (nothing may outlive its caller)
            )
            started.append(process)
        yield Fleet(coordinator, agents, started)
    finally:
        for process in started:
            process.kill()
            process.wait(10)
