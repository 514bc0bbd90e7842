"""Functions of a framework are wrapped where they are there, and a version without them is refused."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from understudy.errors import UsageError
from understudy.integrations.history import History
from understudy.integrations.wrapping import around, call, replace, switch_off, whole


class Trainer:
    def __init__(self) -> None:
        self.log: list[dict[str, Any]] = []

    def step(self, number: int) -> int:
        """Once."""
        return number + 1


def test_a_method_of_one_object_is_replaced() -> None:
    trainer, other = Trainer(), Trainer()

    def twice(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: 2 * function(*args)

    replace("pytest", trainer, step=twice)
    assert trainer.step(3) == 8 and other.step(3) == 4


def test_a_wrapper_is_given_the_former_one_and_the_arguments() -> None:
    trainer = Trainer()
    around("pytest", trainer, step=lambda former, number, more=0: former(number) + more)
    step: Any = trainer.step
    assert step(3, more=10) == 14 and step.__doc__ == "Once."


def test_what_is_switched_off_does_nothing() -> None:
    trainer = Trainer()
    switch_off("pytest", trainer, "step")
    step: Any = trainer.step
    assert step(3) is None and call(len, "four") == 4
    with pytest.raises(UsageError, match=r"has no Trainer\.leap"):
        switch_off("pytest", trainer, "leap")


def test_a_version_without_it_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=rf"^pytest {pytest.__version__} has no Trainer.leap, which"):
        replace("pytest", Trainer(), leap=lambda function: function)


def test_what_is_sharded_is_returned_whole() -> None:
    sharded = SimpleNamespace(full_tensor=lambda: 3.0)
    assert whole(lambda found: found)(sharded) == 3.0 and whole(lambda found: found)(found=2.0) == 2.0


def test_a_history_has_no_times_but_entries_keep_theirs() -> None:
    trainer = Trainer()
    history = History(trainer, "log", ("_runtime",))
    trainer.log += [{"loss": 1.0, "eval_runtime": 0.3}, {"loss": 0.5}]
    taken = history.state_dict()
    assert taken == {"entries": [{"loss": 1.0}, {"loss": 0.5}]}
    log = trainer.log
    log.append({"loss": 0.1})
    history.load_state_dict(taken)
    assert trainer.log is log and log == [{"loss": 1.0, "eval_runtime": 0.3}, {"loss": 0.5}]
    history.load_state_dict({"entries": [{"loss": 2.0}]})
    assert log == [{"loss": 2.0}]
