"""What every suite is made of: rules with names, each a function that makes the plugin anew and tries it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Made = TypeVar("Made")


class NotConforming(AssertionError):
    """A plugin breaks a rule of its contract; the message says which, and how."""


class NotTried(Exception):
    """What the plugin is for is not on this machine. `not_run`: why, for those that show it."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.not_run = why


@dataclass(frozen=True, slots=True)
class Rule(Generic[Made]):
    name: str
    check: Callable[[Callable[[], Made]], None]


def check_all(rules: Sequence[Rule[Made]], make: Callable[[], Made]) -> None:
    """Every rule in turn; `make` must return a new plugin each time. NotConforming at the first that is broken."""
    for rule in rules:
        try:
            rule.check(make)
        except NotConforming as broken:
            raise NotConforming(f"{rule.name}: {broken}") from None


def require(holds: bool, otherwise: str) -> None:
    """Raises NotConforming with what is said `otherwise`."""
    if not holds:
        raise NotConforming(otherwise)


def tried(rule: Callable[[Callable[[], Made]], None]) -> Callable[[Callable[[], Made]], None]:
    """For rules that run much of what is not ours: an error is a broken rule, too."""

    def run(make: Callable[[], Made]) -> None:
        try:
            rule(make)
        except NotConforming:
            raise
        except Exception as error:
            raise NotConforming(f"it raised {type(error).__name__}: {error}") from error

    return run
