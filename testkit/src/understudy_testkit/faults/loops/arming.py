"""What a loop needs to be struck. All else in the loops is as a user would write it."""

import argparse
from typing import Any

import understudy
from understudy_testkit.faults.catalogue import FaultPoint, load_schedule
from understudy_testkit.faults.injector import Injector


def armed(job: understudy.Job, options: argparse.Namespace) -> Injector:
    """Without a schedule it strikes nothing."""
    faults = load_schedule(options.faults) if options.faults else ()
    return Injector(job, faults, options.proofs or options.folder / "proofs")


def strike_behind(faults: Injector, owner: Any, name: str, place: FaultPoint) -> None:
    """When a function of a library has done its work, and its caller has not."""
    function = getattr(owner, name)

    def work_and_strike(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        faults.at(place)
        return result

    setattr(owner, name, work_and_strike)


def halves(parameters: Any) -> list[dict[str, Any]]:
    """Two parameter groups, so that a fault can strike between their updates."""
    found = list(parameters)
    middle = len(found) // 2
    return [{"params": found[:middle]}, {"params": found[middle:]}]
