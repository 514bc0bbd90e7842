"""When ranks hang, a person reads where each of them stands."""

from pathlib import Path

import pytest

from understudy_testkit.faults.assertions import Setup, perform, require_fired, require_success
from understudy_testkit.faults.catalogue import Fault, FaultPoint, Kind

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]


@pytest.mark.parametrize(
    ("kind", "place", "words"),
    [
        (Kind.SPIN, FaultPoint.FORWARD, "in _spin at injector.py:"),
        (Kind.HOLD_GIL, FaultPoint.FORWARD, "did not answer: it is stuck below Python"),
        (Kind.STOP, FaultPoint.COLLECTIVE, "stopped (by a signal or a debugger)"),
    ],
    ids=["python-loop", "native-call", "sigstop"],
)
def test_the_place_of_every_rank_is_told_before_the_recovery(
    tmp_path: Path, kind: Kind, place: FaultPoint, words: str
) -> None:
    fault = Fault(name="hang", kind=kind, rank=1, place=place, step=6)
    outcome = require_success(perform(tmp_path, Setup(ranks=3, steps=12), [fault], timeout=240.0))
    require_fired(outcome, [fault])
    told = [line for line in outcome.output.splitlines() if line.startswith("understudy: no progress: ")]
    assert told[0].startswith(
        "understudy: no progress: ranks 0, 2: in backward (gradient synchronisation), called from "
    )
    assert told[1].startswith(f"understudy: no progress: rank 1: {words}")
    assert outcome.output.index(told[1]) < outcome.output.index("--- recovered")
    before_recovery = outcome.output[: outcome.output.index("--- recovered")]
    assert before_recovery.count("understudy: no progress: rank 1: ") == 1, outcome.output
    assert "in _engine_run_backward" in (outcome.folder / "stacks" / "step-6-1.txt").read_text()
