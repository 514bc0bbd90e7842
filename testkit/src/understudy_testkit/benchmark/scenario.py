"""A scenario: the work, the checkpoint interval and the faults, equal for every arm. Read from a TOML file.

Faults are drawn from a seed, so the file says how many of each kind, and `schedule` says which rank at which step.
"""

import enum
import tomllib
from pathlib import Path
from random import Random
from typing import Literal

import msgspec

from understudy.errors import UsageError


class FaultKind(enum.StrEnum):
    KILL = "kill"  # SIGKILL
    GRACEFUL = "graceful"  # SIGTERM, and SIGKILL when the notice is over
    HANG = "hang"  # SIGSTOP, for good
    SLOW = "slow"  # stopped for half of the time, for a while: a straggler


class PlannedFault(msgspec.Struct, frozen=True, kw_only=True):
    """It strikes the process that holds `rank`, `delay` seconds after a rank has committed `step`."""

    kind: FaultKind
    rank: int
    step: int
    delay: float


class Work(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is trained: a residual network on made-up samples. All numbers are per rank unless they say otherwise."""

    mode: Literal["ddp", "hsdp"] = "ddp"
    ranks: int = 4
    steps: int = 400
    width: int = 512
    blocks: int = 9
    batch_size: int = 16
    samples: int = 65536
    seed: int = 7


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many of each kind, and between which steps."""

    kill: int = 0
    graceful: int = 0
    hang: int = 0
    slow: int = 0
    seed: int = 11
    first_step: int = 30
    last_step: int = 370
    notice: float = 1.0  # seconds between SIGTERM and SIGKILL of a graceful fault
    slow_seconds: float = 5.0


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    title: str
    work: Work = Work()
    faults: Faults = Faults()
    arms: tuple[str, ...] = ()
    steady: tuple[str, ...] = ()  # arms that run without faults too (none named: all); `bare` always does
    repetitions: int = 3
    checkpoint_every: int = 20  # steps; for arms that save
    spares: int = 1  # for arms that have spares
    limit: float = 900.0  # seconds that one run may take

    def schedule(self) -> tuple[PlannedFault, ...]:
        """Equal stretches of the run get one fault each, at a random step in the middle half of the stretch."""
        chance = Random(self.faults.seed)
        kinds = [kind for kind in FaultKind for _ in range(getattr(self.faults, kind.value))]
        chance.shuffle(kinds)
        planned = []
        for place, kind in enumerate(kinds):
            stretch = (self.faults.last_step - self.faults.first_step) / len(kinds)
            step = self.faults.first_step + stretch * (place + 0.25 + 0.5 * chance.random())
            rank = chance.randrange(self.work.ranks)
            planned.append(PlannedFault(kind=kind, rank=rank, step=int(step), delay=round(0.15 * chance.random(), 3)))
        return tuple(planned)

    def runs_steady(self, arm: str) -> bool:
        return not self.steady or arm in (*self.steady, "bare")

    def without_faults(self) -> "Scenario":
        return msgspec.structs.replace(self, faults=Faults(seed=self.faults.seed))


def load_scenario(path: Path) -> Scenario:
    try:
        with open(path, "rb") as file:
            return msgspec.convert(tomllib.load(file), Scenario)
    except FileNotFoundError:
        raise UsageError(f"there is no scenario {path}; see benchmarks/scenarios/") from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"scenario {path}: {error}") from None
