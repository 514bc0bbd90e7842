"""What happens inside of a script on an unusual day: a rank is slow, or is killed. Each leaves a proof, and happens
once, whatever is run again."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Disturbance:
    """`what`: `kill`, `flip` (one bit of a weight), or the seconds of a pause. `place`: where, in its words."""

    what: str
    place: str
    step: int
    ranks: frozenset[int]

    @staticmethod
    def parse(text: str) -> "Disturbance":
        """`kill@body:6:1`, `30@between:6:0,1`: what, where, in which step, on which ranks."""
        what, rest = text.split("@")
        place, step, ranks = rest.split(":")
        return Disturbance(what, place, int(step), frozenset(int(rank) for rank in ranks.split(",")))

    def __str__(self) -> str:
        return f"{self.what}@{self.place}:{self.step}:{','.join(map(str, sorted(self.ranks)))}"


class Disturber:
    """The script calls `at` wherever something may happen."""

    def __init__(self, rank: int, planned: list[Disturbance], proofs: Path | None, flip: Callable[[], None]) -> None:
        self._rank, self._planned, self._proofs, self._flip = rank, planned, proofs, flip

    def at(self, place: str, step: int) -> None:
        for number, disturbance in enumerate(self._planned):
            due = disturbance.place == place and disturbance.step == step and self._rank in disturbance.ranks
            if due and self._leave_proof(f"{number}-{self._rank}", str(disturbance)):
                if disturbance.what == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                elif disturbance.what == "flip":
                    self._flip()
                else:
                    time.sleep(float(disturbance.what))

    def _leave_proof(self, name: str, what: str) -> bool:
        if self._proofs is None:
            return False
        self._proofs.mkdir(parents=True, exist_ok=True)
        try:
            with open(self._proofs / f"{name}.json", "x") as file:
                file.write(json.dumps({"fault": what, "at": time.monotonic(), "pid": os.getpid()}))
        except FileExistsError:
            return False
        return True
