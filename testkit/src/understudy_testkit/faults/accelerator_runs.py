"""Part E of the acceptance of accelerators: jobs whose ranks are killed and stopped, and whose ledgers must be those of
a job without faults. `understudy doctor --accelerators` finds it by its entry point.

Two devices: two ranks, and one spare that shares a device with the rank that it takes over. Eight: six ranks and two
spares. Real devices: untested, no GPU was at hand.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from understudy.cli.examination.accelerators.contract import Bench, Disproved, Needs, Shown, Trial
from understudy.ledger.reading import Run
from understudy_testkit.faults.assertions import NotProven, Setup, perform, prove_identical, require_success
from understudy_testkit.faults.catalogue import IN_STEP, Fault, FaultPoint, Kind

PLACES = (*IN_STEP, FaultPoint.PAST_FENCE)
_FIRST, _SPACING, _AFTER = 3, 4, 3  # steps
_PER_FAULT, _START = 60.0, 300.0  # seconds, as limits
_EXACT = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""Sums in one order, whatever the sizes. Where the user has not set them."""


@dataclass(frozen=True, slots=True)
class Layout:
    ranks: int
    spares: int
    replicas: int


def layout_for(devices: int) -> Layout:
    """Two replicas at least, so that every rank has a twin."""
    return Layout(ranks=6, spares=2, replicas=3) if devices >= 8 else Layout(ranks=2, spares=1, replicas=2)


def faults(kinds: Sequence[Kind], places: Sequence[FaultPoint], ranks: int) -> list[Fault]:
    """One after another in one run."""
    return [
        Fault(name=f"{kind}-{place}-rank{rank}", kind=kind, rank=rank, place=place, step=_FIRST + _SPACING * number)
        for number, (kind, place, rank) in enumerate(itertools.product(kinds, places, range(ranks)))
    ]


def setup_for(bench: Bench, mode: str, planned: Sequence[Fault]) -> Setup:
    layout = layout_for(bench.devices)
    patience = ("10.0", "20.0") if bench.emulated else ("60.0", "120.0")
    return Setup(
        mode=mode,
        steps=(planned[-1].step or 0) + _AFTER,
        ranks=layout.ranks,
        spares=layout.spares,
        script_args=("--device", bench.device, "--fast", "--replicas", str(layout.replicas)),
        flags=(
            *("--ledger-digest-every", "1", "--step-timeout-min", patience[0], "--busy-timeout", patience[1]),
            "--no-degrade",
        ),
    )


@contextmanager
def environment_of(bench: Bench) -> Iterator[None]:
    """Jobs are started with the environment of this process: the bench's, and what makes sums exact."""
    former = dict(os.environ)
    debug = {} if bench.emulated else {"NCCL_DEBUG": "INFO", **_EXACT}
    os.environ.update({**debug, **bench.environment})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(former)


class Runs:
    """The runs of one mode. Without faults once, for all."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._references: dict[int, Run] = {}

    def carry_out(self, bench: Bench, kinds: Sequence[Kind], places: Sequence[FaultPoint]) -> Shown:
        planned = faults(kinds, places, 1 if bench.quick else layout_for(bench.devices).ranks)
        setup = setup_for(bench, self.mode, planned)
        try:
            with environment_of(bench):
                reference = self._reference(bench, setup)
                bench.tell(f"{len(planned)} faults in {setup.steps} steps of {setup.ranks} ranks")
                limit = _START + _PER_FAULT * len(planned)
                outcome = prove_identical(bench.folder() / "faults", setup, reference, planned, timeout=limit)
        except NotProven as failure:
            raise Disproved(str(failure)[-1500:], "send the archive back") from None
        recoveries = outcome.run.recoveries
        told = f"{len(planned)} faults, {len(recoveries)} recoveries: identical to a run without faults"
        seconds = [round(each.at - each.opened_at, 3) for each in recoveries]
        return Shown(told, {"faults": len(planned), "recoveries_s": seconds, "run_s": round(outcome.seconds, 1)})

    def _reference(self, bench: Bench, setup: Setup) -> Run:
        if setup.steps not in self._references:
            bench.tell(f"{self.mode} without faults")
            quiet = replace(setup, spares=0)
            self._references[setup.steps] = require_success(
                perform(bench.folder() / "reference", quiet, (), _START)
            ).run
        return self._references[setup.steps]


def trials(bench: Bench) -> Sequence[Trial]:
    if bench.quick:
        kinds, places = (Kind.KILL, Kind.STOP), (FaultPoint.COLLECTIVE,)
        carry_out: Callable[[Bench], Shown] = partial(Runs("ddp").carry_out, kinds=kinds, places=places)
        return (Trial(name="ddp", carry_out=carry_out, needs=Needs(devices=2)),)
    runs = [Runs("ddp"), Runs("hsdp")]
    return [
        Trial(
            name=f"{each.mode}-{kind}",
            carry_out=partial(each.carry_out, kinds=(kind,), places=PLACES),
            needs=Needs(devices=2),
        )
        for each, kind in itertools.product(runs, (Kind.KILL, Kind.STOP))
    ]
