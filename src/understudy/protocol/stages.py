"""The stages of a job, and what leads from one to the next. `TRANSITIONS` is what the code goes by, and the documents
show it; whatever is not in it cannot happen."""

import enum
from typing import Final


class Stage(enum.Enum):
    FOUNDING = "founding"  # a new world on its way to its first commit
    TRAINING = "training"
    STOPPING = "stopping"  # the generation was abandoned; positions and joiners are awaited
    FORMING = "forming"  # the verdict is out; regroup and transfer are under way
    STOPPED = "stopped"


class Trigger(enum.Enum):
    WORLD_FOUNDED = "every rank is given to a new process"
    FIRST_COMMIT = "a founding member has committed its first step"
    GENERATION_OPENED = "a loss, a deadlock, a failed recovery, bad state, or a request"
    MOVE_BEGUN = "every rank that moves has a prepared successor, and all members have told their step"
    VERDICT = "all positions are known, and all joiners are prepared"
    ALL_RESUMED = "every member has resumed"


TRANSITIONS: Final[dict[tuple[Stage, Trigger], Stage]] = {
    (Stage.FOUNDING, Trigger.WORLD_FOUNDED): Stage.FOUNDING,
    (Stage.FOUNDING, Trigger.FIRST_COMMIT): Stage.TRAINING,
    (Stage.FOUNDING, Trigger.GENERATION_OPENED): Stage.STOPPING,
    (Stage.TRAINING, Trigger.GENERATION_OPENED): Stage.STOPPING,
    (Stage.TRAINING, Trigger.MOVE_BEGUN): Stage.STOPPING,
    (Stage.STOPPING, Trigger.WORLD_FOUNDED): Stage.FOUNDING,
    (Stage.STOPPING, Trigger.GENERATION_OPENED): Stage.STOPPING,
    (Stage.STOPPING, Trigger.VERDICT): Stage.FORMING,
    (Stage.FORMING, Trigger.GENERATION_OPENED): Stage.STOPPING,
    (Stage.FORMING, Trigger.ALL_RESUMED): Stage.TRAINING,
}
"""Every stage but the last may also be followed by STOPPED, when the job ends."""


def next_stage(stage: Stage, trigger: Trigger) -> Stage:
    assert (stage, trigger) in TRANSITIONS, f"{trigger.name} in stage {stage.name}"
    return TRANSITIONS[stage, trigger]


def as_table() -> str:
    """For the documents."""
    rows = [f"| {before.name} | {trigger.value} | {after.name} |" for (before, trigger), after in TRANSITIONS.items()]
    return "\n".join(["| Stage | What happens | Next stage |", "|---|---|---|", *rows])
