"""What the testkit brings to the acceptance, found by entry points: this package never imports it.

`understudy.emulations`: a device that is none, by name; a function that makes it and its family of communicators known
to this process. `understudy.trials`: parts E and F, by name; a function that gets the bench and returns trials. Both
run training scripts and faults, which the product does not have.
"""

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any

from understudy.cli.examination.accelerators.contract import NotShown, Trial

EMULATIONS, TRIALS = "understudy.emulations", "understudy.trials"
INSTALL = "pip install understudy-testkit"


def emulations() -> list[str]:
    return sorted(entry.name for entry in entry_points(group=EMULATIONS))


def emulate(name: str) -> None:
    """In each process that uses the device."""
    (entry,) = entry_points(group=EMULATIONS, name=name)
    entry.load()()


def trials_of(name: str) -> Callable[[Any], Sequence[Trial]]:
    def trials(bench: Any) -> Sequence[Trial]:
        found = tuple(entry_points(group=TRIALS, name=name))
        if not found:
            raise NotShown("needs the training scripts and faults of another package", INSTALL)
        made: Sequence[Trial] = found[0].load()(bench)
        return made

    return trials
