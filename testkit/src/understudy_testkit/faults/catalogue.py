"""Faults as data: what happens to which rank at which place of which step. The same schedule runs anywhere."""

import enum
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path


class Kind(enum.StrEnum):
    KILL = "kill"  # SIGKILL
    STOP = "stop"  # SIGSTOP
    SPIN = "spin"  # a Python loop that never ends
    HOLD_GIL = "hold-gil"  # a native call that never returns and keeps the interpreter lock
    ERROR = "error"  # the script raises
    FLIP = "flip"  # one bit of its first weight changes; nothing else happens
    SPOIL = "spoil"  # its first weights are not numbers any more; nothing else happens
    POISON = "poison"  # its step goes on, but it can form no group any more
    FAIL_DEVICE = "fail-device"  # queued device: its communicators end in an error, and a moment later it is killed
    FAIL_NETWORK = "fail-network"  # queued device: its communicators end in an error, and nothing else happens
    DELAY = "delay"  # it sleeps for a moment, so that others are ahead of it


class FaultPoint(enum.StrEnum):
    FORWARD = "forward"
    COLLECTIVE = "collective"  # blocked in a collective of the backward
    BEFORE_FENCE = "before-fence"
    IN_FENCE = "in-fence"  # it has arrived and waits for another one
    PAST_FENCE = "past-fence"  # all have arrived; its optimizer has not begun
    IN_OPTIMIZER = "in-optimizer"  # one of two parameter groups is updated
    AFTER_OPTIMIZER = "after-optimizer"
    BETWEEN_STEPS = "between-steps"
    QUEUE = "queue"  # queued device: it has done so many operations (`operations`) since the forward pass
    # places that a loop names itself
    LOG = "log"  # its line of this step is about to be written
    FIRST_BACKWARD = "first-backward"  # of a body whose first optimizer steps before its last backward pass
    IN_FIRST_OPTIMIZER = "in-first-optimizer"
    BETWEEN_OPTIMIZERS = "between-optimizers"
    BEFORE_SECTION = "before-section"  # the step is committed
    EVALUATION = "evaluation"  # in the section, before its reduction
    SAVING = "saving"  # in the section, with half of the files written
    EPOCH_END = "epoch-end"  # behind its sections and its scheduler
    # phases of a recovery
    STOP = "stop"
    REHEARSE = "rehearse"
    REGROUP = "regroup"
    TRANSFER = "transfer"
    RESUME = "resume"
    HAND_OVER = "hand over"  # of a planned move: the one that leaves


IN_STEP = (
    FaultPoint.FORWARD,
    FaultPoint.COLLECTIVE,
    FaultPoint.BEFORE_FENCE,
    FaultPoint.IN_OPTIMIZER,
    FaultPoint.AFTER_OPTIMIZER,
    FaultPoint.BETWEEN_STEPS,
)
AT_FENCE = (FaultPoint.IN_FENCE, FaultPoint.PAST_FENCE)  # only where there is one, and another rank comes late
IN_MOVE = (FaultPoint.HAND_OVER,)
IN_QUEUE = (FaultPoint.QUEUE,)  # of an emulated device
IN_LOOP = (
    FaultPoint.LOG,
    FaultPoint.FIRST_BACKWARD,
    FaultPoint.IN_FIRST_OPTIMIZER,
    FaultPoint.BETWEEN_OPTIMIZERS,
    FaultPoint.BEFORE_SECTION,
    FaultPoint.EVALUATION,
    FaultPoint.SAVING,
    FaultPoint.EPOCH_END,
)
IN_RECOVERY = (FaultPoint.STOP, FaultPoint.REHEARSE, FaultPoint.REGROUP, FaultPoint.TRANSFER, FaultPoint.RESUME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`step` is None for places in a recovery. `joiner`: only a member that joined as a replacement.

    `after`: the name of another fault that must have fired before; it ties a fault in a recovery to that recovery.
    """

    name: str
    kind: Kind
    rank: int
    place: FaultPoint
    step: int | None = None
    joiner: bool = False
    after: str | None = None
    times: int = 1  # how many members in a row meet it
    operations: int = 0  # of a device, for FaultPoint.QUEUE


def save_schedule(path: Path, faults: Iterable[Fault]) -> None:
    """Only what is not the default: a script of an earlier version reads it too, and does not know newer fields."""
    path.write_text(json.dumps([_told(fault) for fault in faults], indent=1))


def _told(fault: Fault) -> dict[str, object]:
    usual = {field.name: field.default for field in fields(Fault)}
    return {name: value for name, value in asdict(fault).items() if value != usual[name]}


def load_schedule(path: Path) -> tuple[Fault, ...]:
    return tuple(
        Fault(**{**entry, "kind": Kind(entry["kind"]), "place": FaultPoint(entry["place"])})
        for entry in json.loads(path.read_text())
    )
