"""Checks that the adapter of a scheduler keeps the contract (`understudy.plugins.scheduler`, a draft):

    from understudy_testkit.conformance import schedulers

    def test_my_scheduler_conforms() -> None:
        schedulers.check(MyScheduler, {"MY_NODES": "4", "MY_NODE": "1"})

The environments are those of processes that the scheduler has started. Its notices are not asked for: that needs the
scheduler itself.
"""

from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction

from understudy.plugins.scheduler import Placement, Scheduler
from understudy_testkit.conformance.rule import NotConforming, Rule, check_all, require

_FOREIGN: tuple[Mapping[str, str], ...] = ({}, {"PATH": "/usr/bin", "HOME": "/root", "HOSTNAME": "laptop"})


def check(make: Callable[[], Scheduler], *environments: Mapping[str, str]) -> None:
    """NotConforming at the first rule that is broken."""
    check_all(rules(*environments), make)


def rules(*environments: Mapping[str, str]) -> tuple[Rule[Scheduler], ...]:
    return (
        Rule("knows a process that it did not start", _knows_strangers),
        Rule("places a process that it started", lambda make: _places(make, environments)),
        Rule("survives an environment that is damaged", lambda make: _survives(make, environments)),
        Rule("tells its notices without blocking", _does_not_block),
    )


def _placed(make: Callable[[], Scheduler], environment: Mapping[str, str]) -> Placement | None:
    scheduler = make()
    try:
        first, second = scheduler.placement(dict(environment)), scheduler.placement(dict(environment))
    except Exception as error:
        raise NotConforming(f"given {dict(environment)} it raised {type(error).__name__}: {error}") from error
    require(first == second, f"given {dict(environment)} twice, it answered {first!r} and {second!r}")
    return first


def _knows_strangers(make: Callable[[], Scheduler]) -> None:
    for environment in _FOREIGN:
        require(_placed(make, environment) is None, f"it claims a process with the environment {dict(environment)}")


def _places(make: Callable[[], Scheduler], environments: tuple[Mapping[str, str], ...]) -> None:
    for environment in environments:
        placed = _placed(make, environment)
        shown = f"given {dict(environment)} it answered {placed!r}"
        require(isinstance(placed, Placement), f"{shown}, which is no placement")
        _check_placement(placed, shown)


def _check_placement(placed: Placement | None, shown: str) -> None:
    if placed is None:
        return
    require(placed.hosts >= 1 and placed.ranks_per_host >= 1, f"{shown}: a job has one host and one rank at least")
    require(placed.place is None or 0 <= placed.place < placed.hosts, f"{shown}: that place does not exist")
    require(bool(placed.host) and placed.attempt >= 0, f"{shown}, without a name or with a negative attempt")


def _survives(make: Callable[[], Scheduler], environments: tuple[Mapping[str, str], ...]) -> None:
    for environment in environments:
        for name in environment:
            for value in (None, "", "no number", "-1", "9" * 40):
                rest = {key: text for key, text in environment.items() if key != name}
                damaged = rest if value is None else {**rest, name: value}
                _check_placement(_placed(make, damaged), f"given {damaged}")


def _does_not_block(make: Callable[[], Scheduler]) -> None:
    require(iscoroutinefunction(make().notices), "its `notices` is no coroutine function")
