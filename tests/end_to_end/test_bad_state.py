"""Real processes: a replacement whose state turns bad right after its recovery is found, and a lower rung helps."""

from collections.abc import Callable
from pathlib import Path

import pytest

from understudy.faults.catalogue import Fault, Kind, Place
from understudy.faults.proving import Setup, prove_identical
from understudy.ledger.reading import Run
from understudy.protocol.commands import DecisionKind

pytestmark = pytest.mark.processes

FAULTS = [
    Fault(name="killed", kind=Kind.KILL, rank=1, place=Place.FORWARD, step=6),
    Fault(name="spoilt", kind=Kind.SPOIL, rank=1, place=Place.RESUME, joiner=True, after="killed"),
]


def reasons(run: Run, kind: DecisionKind) -> list[str]:
    return [record.reason for record in run.decisions if record.kind == kind.value]


@pytest.mark.parametrize(
    ("mode", "flags", "rung"),
    [
        ("fsdp", ("--peer-memory", "1"), "peer memory: everybody"),
        ("ddp", ("--compare-twins", "1"), "rewind: everybody goes back to the state before step 6"),
    ],
    ids=["an older copy", "the agreed state"],
)
def test_the_world_steps_down(
    tmp_path: Path, mode: str, flags: tuple[str, ...], rung: str, reference: Callable[[Setup], Run]
) -> None:
    """Without a lower rung the run would end with weights that are not numbers."""
    plain = Setup(mode=mode, ranks=2, steps=12)
    setup = Setup(mode=mode, ranks=2, steps=12, flags=(*plain.flags, *flags))
    outcome = prove_identical(tmp_path, setup, reference(plain), FAULTS, timeout=240)
    (stepped,) = reasons(outcome.run, DecisionKind.STEP_DOWN)
    assert "not finite" in stepped and "bad state on probation" in stepped
    assert rung in reasons(outcome.run, DecisionKind.REWIND)[-1]
    assert outcome.run.decisions[-1].kind != DecisionKind.STOP.value or outcome.exit_code == 0
