"""Makes scheduled faults happen inside a real worker, and leaves a proof for each one that fired.

A fault fires as often as its `times` says, over all members that ever hold the rank: the proof is a file that only one
process can create, written before the blow.
"""

import ctypes
import functools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from understudy.foundation.ids import StepNumber
from understudy.groups.fence import BEFORE_CHANGE, SharedFence
from understudy.state.protected_state import local
from understudy.training.job import Job
from understudy.training.steps import Step
from understudy_testkit import queued_device
from understudy_testkit.faults.catalogue import Fault, FaultPoint, Kind

_PEER_DELAY = 0.25
_KILL_DELAY = 0.08
_DELAY = 0.4  # a recovery is well under way by then
_GATE_EVERY = 0.01


class InjectedError(RuntimeError):
    """What `Kind.ERROR` raises."""


class Injector:
    """Arm it before `job.protect()`, so that its optimizer hook comes before the fence."""

    def __init__(self, job: Job, faults: tuple[Fault, ...], proofs: Path, gate: Path | None = None) -> None:
        """`gate`: a file with the number of the last step that may begin, see `open_gate`."""
        self._job, self._faults, self._proofs, self._gate = job, faults, proofs, gate
        self._step: Step | None = None
        self._joined = False
        self._poisoned = False
        self._optimizer: torch.optim.Optimizer | None = None
        proofs.mkdir(parents=True, exist_ok=True)
        job.on_phase(self._on_phase)

    # -- hooks --------------------------------------------------------------------------------------------------------

    def arm(self, block: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """`block`: a module in the middle of the model. The optimizer needs two parameter groups."""
        self._optimizer = optimizer
        block.register_forward_pre_hook(lambda *_: self._at_forward())
        block.register_full_backward_pre_hook(lambda *_: self._at_collective())
        optimizer.register_step_pre_hook(lambda *_: self.at(FaultPoint.BEFORE_FENCE))
        optimizer.register_step_post_hook(lambda *_: self.at(FaultPoint.AFTER_OPTIMIZER))
        self.arm_inside(optimizer)
        self._arm_fence()

    def arm_inside(self, optimizer: torch.optim.Optimizer, place: FaultPoint = FaultPoint.IN_OPTIMIZER) -> None:
        """Between the updates of the first and the second parameter group the state is half changed."""
        begin_group: Any = optimizer._init_group  # type: ignore[attr-defined]

        def begin_and_check(group: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            if group is optimizer.param_groups[1]:
                self.at(place)
            return begin_group(group, *args, **kwargs)

        optimizer._init_group = begin_and_check  # type: ignore[attr-defined]

    def _arm_fence(self) -> None:
        """A rank that waits in the fence asks again and again whether contact is lost: then it has arrived."""
        meet = SharedFence.meet

        def meet_and_check(
            fence: SharedFence, step: StepNumber, lost_contact: Callable[[], bool], place: int = BEFORE_CHANGE
        ) -> None:
            def check_and_ask() -> bool:
                self.at(FaultPoint.IN_FENCE)
                return lost_contact()

            if place != BEFORE_CHANGE:
                return meet(fence, step, lost_contact, place)
            meet(fence, step, check_and_ask, place)
            self.at(FaultPoint.PAST_FENCE)
            return None

        SharedFence.meet = meet_and_check  # type: ignore[method-assign, assignment]

    def watch(self, steps: Iterator[Step]) -> Iterator[Step]:
        for step in steps:
            self._step = step
            self._wait_at_gate(step)
            yield step
            if step.committed:
                self.at(FaultPoint.BETWEEN_STEPS)

    def _wait_at_gate(self, step: Step) -> None:
        """A rank that is told to leave the generation does so, and comes back to the gate."""
        member = self._job._member
        assert member is not None or self._gate is None
        while not self._may_begin(step) and not (member is not None and member.status.abandoned):
            time.sleep(_GATE_EVERY)

    def _may_begin(self, step: Step) -> bool:
        return self._gate is None or step.rehearsing or step.number <= int(self._gate.read_text())

    def _on_phase(self, phase: str, _generation: int) -> None:
        if self._poisoned and phase == FaultPoint.REGROUP:
            raise RuntimeError("poisoned: this process can form no group any more")
        self._joined = self._joined or phase == FaultPoint.REHEARSE
        for fault in self._faults:
            if fault.place == phase and fault.rank == self._job.rank and fault.joiner == self._joined:
                self._fire(fault)
        self._joined = self._joined and phase != FaultPoint.RESUME  # from now on it is a survivor like the others

    # -- firing -------------------------------------------------------------------------------------------------------

    def _due(self, place: FaultPoint, rank: int) -> Iterator[Fault]:
        step = self._step
        if step is None or step.rehearsing:
            return
        for fault in self._faults:
            due = fault.place is place and fault.rank == rank and fault.step == step.number
            if due and self._may_begin(step):
                yield fault

    def at(self, place: FaultPoint) -> None:
        """The script is at this place; loops call it for those that no hook finds."""
        for fault in self._due(place, self._job.rank):
            self._fire(fault)

    def _at_forward(self) -> None:
        """A fault in the queue strikes later, wherever the host is by then."""
        for fault in self._due(FaultPoint.QUEUE, self._job.rank):
            strike = functools.partial(self._fire, fault)
            queued_device.installed().stream.call_after(fault.operations, strike)
        self.at(FaultPoint.FORWARD)

    def _at_collective(self) -> None:
        """Strike while blocked: a thread does it, and a peer comes late so that the collective cannot complete."""
        for fault in self._due(FaultPoint.COLLECTIVE, self._job.rank):
            threading.Timer(_KILL_DELAY, self._fire, [fault]).start()
        neighbour = (self._job.rank - 1) % self._job.world_size
        for fault in self._due(FaultPoint.COLLECTIVE, neighbour):
            if self._remaining(fault):
                time.sleep(_PEER_DELAY)

    def _remaining(self, fault: Fault) -> bool:
        return not (self._proofs / f"{fault.name}.{fault.times - 1}.json").exists()

    def _fire(self, fault: Fault) -> None:
        if fault.after is not None and not (self._proofs / f"{fault.after}.0.json").exists():
            return
        for turn in range(fault.times):
            if self._leave_proof(fault, turn):
                if fault.kind is Kind.FLIP:
                    self._flip()
                elif fault.kind is Kind.SPOIL:
                    self._spoil()
                elif fault.kind is Kind.POISON:
                    self._poisoned = True
                else:
                    _strike(fault)
                return

    def _flip(self) -> None:
        """A bit in the middle of a fraction: the number stays a sensible one. Written to the bare memory, of which the
        engine knows nothing."""
        assert self._optimizer is not None
        first = local(self._optimizer.param_groups[0]["params"][0])
        ctypes.c_uint32.from_address(first.data_ptr()).value ^= 1 << 12

    @torch.no_grad()
    def _spoil(self) -> None:
        assert self._optimizer is not None
        local(self._optimizer.param_groups[0]["params"][0]).fill_(float("nan"))

    def _leave_proof(self, fault: Fault, turn: int) -> bool:
        proof = {
            "fault": fault.name,
            "at": time.monotonic(),
            "pid": os.getpid(),
            "rank": self._job.rank,
            "step": self._step.number if self._step else None,
            "place": fault.place,
            "kind": fault.kind,
        }
        path = self._proofs / f"{fault.name}.{turn}.json"
        written = path.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(proof))
        try:
            os.link(written, path)  # whole from the first moment, for a reader may be there already
        except FileExistsError:
            return False
        finally:
            written.unlink()
        return True


def _strike(fault: Fault) -> None:
    match fault.kind:
        case Kind.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Kind.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        case Kind.SPIN:
            _spin()
        case Kind.HOLD_GIL:
            ctypes.PyDLL(None).sleep(100_000)
        case Kind.FAIL_DEVICE:
            queued_device.installed().watchdog.fail_all()
            threading.Timer(_DELAY, os.kill, [os.getpid(), signal.SIGKILL]).start()
        case Kind.FAIL_NETWORK:
            queued_device.installed().watchdog.fail_all()
        case Kind.DELAY:
            time.sleep(_DELAY)
        case Kind.ERROR:
            raise InjectedError(f"injected by {fault.name}")


def _spin() -> NoReturn:
    while True:
        pass


def open_gate(gate: Path, last: int) -> None:
    """From outside: steps up to `last` may begin."""
    new = gate.with_suffix(".new")
    new.write_text(str(last))
    new.replace(gate)


def fired(proofs: Path) -> list[dict[str, Any]]:
    """Every proof, in the order in which the faults struck."""
    found = [json.loads(path.read_text()) for path in proofs.glob("*.json")]
    return sorted(found, key=lambda proof: float(proof["at"]))
