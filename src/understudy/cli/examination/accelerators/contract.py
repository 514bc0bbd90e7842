"""What a part of the acceptance is: trials, each with what it needs, and what came out of it.

A trial returns what it has shown, with its figures. `NotShown`: this machine cannot show it. `Disproved`: it could, and
it is not so. Any other error of a trial is a failure, too.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from understudy.errors import UnderstudyError

Figures = Mapping[str, Any]
"""Of what JSON has; a name says its unit."""


class Verdict(enum.StrEnum):
    SHOWN = "shown"
    NOT_SHOWN = "not shown"
    FAILED = "failed"


class NotShown(UnderstudyError):
    """This machine cannot show it; the message says what is missing. `advice`: what to do about that."""

    def __init__(self, text: str, advice: str = "", **figures: Any) -> None:
        super().__init__(text)
        self.advice, self.figures = advice, figures


class Disproved(UnderstudyError):
    """What the trial is to show is not so. `advice`: what to do."""

    def __init__(self, text: str, advice: str = "", **figures: Any) -> None:
        super().__init__(text)
        self.advice, self.figures = advice, figures


@dataclass(frozen=True, slots=True)
class Shown:
    sentence: str
    figures: Figures = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """`devices`: so many. `driver`: real ones, with their driver; nothing is learnt from an emulated device."""

    devices: int = 0
    driver: bool = False


class Bench(Protocol):
    """What a trial works with. `device`: its name, as a plugin is called; `family`: of communicators. `emulated`: it is
    test equipment. `devices`: how many there are. `quick`: show that it works, in seconds. `environment`: for
    processes. `trial`: what its folder is called."""

    device: str
    family: str
    emulated: bool
    devices: int
    quick: bool
    environment: Mapping[str, str]
    trial: str

    def folder(self) -> Path:
        """Of the trial that is being carried out. JSON and text that it leaves here go into the archive."""
        ...

    def tell(self, text: str) -> None:
        """To the person at the terminal: how far it has come."""
        ...


CarryOut = Callable[[Any], Shown]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """`name`: short, of small letters and dashes. `carry_out` gets the bench."""

    name: str
    carry_out: CarryOut
    needs: Needs = Needs()

    def missing(self, bench: Bench) -> str | None:
        """What it needs and this machine has not."""
        if self.needs.driver and bench.emulated:
            return "needs a GPU"
        if bench.devices < self.needs.devices:
            many = "a GPU" if self.needs.devices == 1 else f"{self.needs.devices} GPUs"
            return f"needs {many}; there {'is 1' if bench.devices == 1 else f'are {bench.devices}'}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`trials`: chosen for a bench."""

    letter: str
    title: str
    trials: Callable[[Any], Sequence[Trial]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    part: str
    trial: str
    verdict: Verdict
    sentence: str
    figures: Figures = field(default_factory=dict)
    advice: str = ""
    seconds: float = 0.0
