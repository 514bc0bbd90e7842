"""Real processes: a replacement whose state turns bad right after its recovery is found, and a lower rung helps."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run

from understudy.ledger.comparing import Verdict, compare
from understudy.ledger.reading import Run, read_run
from understudy.protocol.commands import DecisionKind
from understudy.protocol.reasons import Code, Reason, because
from understudy_testkit.faults.catalogue import Fault, Kind, Place
from understudy_testkit.faults.proving import Setup, prove_identical

pytestmark = pytest.mark.processes

FAULTS = [
    Fault(name="killed", kind=Kind.KILL, rank=1, place=Place.FORWARD, step=6),
    Fault(name="spoilt", kind=Kind.SPOIL, rank=1, place=Place.RESUME, joiner=True, after="killed"),
]


def reasons(run: Run, kind: DecisionKind) -> list[Reason]:
    return [record.why for record in run.decisions if record.kind == kind.value]


@pytest.mark.parametrize(
    ("mode", "flags", "strategy", "step"),
    [
        ("fsdp", ("--peer-memory", "1"), Code.GOES_BACK_TO_SAVED, None),
        ("ddp", ("--compare-twins", "1"), Code.REWIND, 6),
    ],
    ids=["an older copy", "the agreed state"],
)
def test_the_world_steps_down(
    tmp_path: Path,
    mode: str,
    flags: tuple[str, ...],
    strategy: Code,
    step: int | None,
    reference: Callable[[Setup], Run],
) -> None:
    """Without a lower rung the run would end with weights that are not numbers."""
    plain = Setup(mode=mode, ranks=2, steps=12)
    setup = Setup(mode=mode, ranks=2, steps=12, flags=(*plain.flags, *flags))
    outcome = prove_identical(tmp_path, setup, reference(plain), FAULTS, timeout=240)
    (stepped,) = reasons(outcome.run, DecisionKind.STEP_DOWN)
    assert stepped.code == Code.BAD_ON_PROBATION and (stepped.has(Code.NOT_FINITE) or stepped.has(Code.BAD_STATE))
    rewind = [part for part in reasons(outcome.run, DecisionKind.REWIND)[-1].all() if part.code == strategy]
    assert rewind and step in (None, rewind[0].get("step"))
    assert outcome.run.decisions[-1].kind != DecisionKind.STOP.value or outcome.exit_code == 0


@pytest.mark.parametrize(
    ("flags", "then"),
    [
        # The news that all agree on the state before step 5 may come too late: rank 1 dies early in that step.
        (("--compare-twins", "1"), [because(Code.REWIND, step=step) for step in (4, 5)]),
        ((), []),
    ],
    ids=["the agreed state", "nothing below"],
)
def test_a_loss_that_is_not_finite_is_seen_and_where_nothing_is_below_only_said(
    tmp_path: Path, flags: tuple[str, ...], then: list[Reason]
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
    assert because(Code.BAD_STATE, rank=1, step=5, text="its loss is not finite (inf)") in stepped.all()
    below = [part for record in run.decisions for part in record.why.all() if part in then]
    assert below if then else any(record.has(Code.NOTHING_BELOW) for record in run.decisions)
    comparison = compare(read_run(quiet.run_dir), run)
    assert comparison.verdict is Verdict.IDENTICAL, comparison.sentence()
