"""Targets are judged from the kept results, and a miss is told like a hit."""

import msgspec
from tests.benchmark.made_up import campaign, run

from understudy_testkit.benchmark.targets import targets


def test_hits_and_misses_are_told() -> None:
    told = {target.what: (target.measured, target.reached) for target in targets(campaign())}
    assert told == {
        "runs finished": ("1 of 1", True),
        "steps lost": ("0", True),
        "samples dropped or repeated": ("0", True),
        "final weights": ("identical", True),
        "wall clock": ("1.08 (1.08 to 1.08) x bare", True),
        "full strength, against restart": ("16.0 x", True),
        "stepping, against restart": ("16.0 x", True),
    }
    slow = msgspec.structs.replace(
        campaign(),
        runs=(run("bare", False, 25.0), run("restart", True, 60.0, full=8.0), run("understudy", True, 30.0, full=1.0)),
    )
    missed = [(target.what, target.measured) for target in targets(slow) if not target.reached]
    assert missed == [("wall clock", "1.20 (1.20 to 1.20) x bare"), ("full strength, against restart", "8.0 x")]


def test_an_arm_that_never_came_back_was_not_quicker() -> None:
    runs = (run("bare", False, 25.0), run("restart", True, 60.0), run("understudy", True, 27.0, full=0.5))
    told = {target.what: target for target in targets(msgspec.structs.replace(campaign(), runs=runs))}
    assert told["stepping, against restart"].measured == "restart never was"
    assert told["stepping, against restart"].reached


def test_without_a_run_of_ours_there_is_nothing_to_judge() -> None:
    assert targets(msgspec.structs.replace(campaign(), runs=(run("bare", False, 25.0),))) == []
