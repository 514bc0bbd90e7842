"""Real processes: a replacement whose state turns bad right after its recovery is found, and a lower rung helps."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import Run, read_run
from understudy.protocol.commands import DecisionKind
from understudy_testkit.faults.assertions import Setup, prove_identical
from understudy_testkit.faults.catalogue import Fault, FaultPoint, Kind

pytestmark = pytest.mark.processes

FAULTS = [
    Fault(name="killed", kind=Kind.KILL, rank=1, place=FaultPoint.FORWARD, step=6),
    Fault(name="spoilt", kind=Kind.SPOIL, rank=1, place=FaultPoint.RESUME, joiner=True, after="killed"),
]


def reasons(run: Run, kind: DecisionKind) -> list[str]:
    return [record.reason for record in run.decisions if record.kind == kind.value]


@pytest.mark.parametrize(
    ("mode", "flags", "rung"),
    [
        ("fsdp", ("--peer-snapshot-every", "1"), "peer memory: everybody"),
        ("ddp", ("--check-replicas-every", "1"), "rewind: everybody goes back to the state before step 6"),
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


@pytest.mark.parametrize(
    ("flags", "then"),
    [
        # The news that all agree on the state before step 5 may come too late: rank 1 dies early in that step.
        (("--check-replicas-every", "1"), "rewind: everybody goes back to the state before step [45],"),
        ((), "there was nothing to step down to"),
    ],
    ids=["the agreed state", "nothing below"],
)
def test_a_loss_that_is_not_finite_is_seen_and_where_nothing_is_below_only_said(
    tmp_path: Path, flags: tuple[str, ...], then: str
) -> None:
    """The gradients are what they always are, so both runs end like the one in which nothing happened."""
    script = str(SCRIPTS / "infinite_loss.py")
    with understudy_run(tmp_path / "quiet", script, str(tmp_path), spares=0) as quiet:
        assert quiet.wait() == 0, quiet.output
    with understudy_run(tmp_path / "bad", script, str(tmp_path), "--bad", flags=flags) as job:
        assert job.wait() == 0, job.output
    assert (tmp_path / "killed").exists() and (tmp_path / "bad_once").exists()
    run = read_run(job.run_dir)
    (stepped,) = reasons(run, DecisionKind.STEP_DOWN)
    assert "rank 1 after step 5: its loss is not finite (inf)" in stepped
    assert any(re.search(then, record.reason) for record in run.decisions), [record.reason for record in run.decisions]
    comparison = compare(read_run(quiet.run_dir), run)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
