"""What of a run's decisions its schedule determines: the part that two runs of one seed have in common.

For every act: who was lost, who was ended because it hung, which rung of the ladder was taken, whose bytes differed,
which ranks the world went on without, whether they came back, and, where nobody can have committed the step that was
interrupted, at which step the world resumed. Then how the job ended.

Left out on purpose, because it is a race and right either way:

- times, process ids, names of members; how many generations a recovery took, and which of two losses was heard first;
- commit or retry of a step that was interrupted after its gradients were added up: it depends on who had come how far;
- alarms: whether a rank's trouble in forming a world, or the loss that caused it, is heard first;
- whether a script that raised ends by itself, or is ended because that takes longer than the world's patience;
- verdicts of generations that did not resume; for a flip the exact state to which all go back;
- the step of the boundary at which absent ranks come back: it is chosen by the pace of the last steps;
- when spares are refilled (the act waits for them anyway).
"""

from collections.abc import Iterable

from understudy.ledger.records import DecisionRecord
from understudy.protocol.commands import DecisionKind
from understudy.protocol.reasons import Code
from understudy.protocol.rungs import Rung
from understudy.protocol.sentences import sentence
from understudy_testkit.faults.catalogue import Kind
from understudy_testkit.faults.chaos import RANKS, Act, Schedule

_LOST = {
    DecisionKind.SWAP.value: "lost",
    DecisionKind.KILL.value: "hung",
}
_RUNGS = {
    DecisionKind.DEGRADE.value: Rung.DEGRADE,
    DecisionKind.RESTART.value: Rung.RESTART,
}
_DIFFERENCES = (Code.OUTLIERS, Code.UNDECIDABLE)
_ENDS = (DecisionKind.FINISH.value, DecisionKind.STOP.value, DecisionKind.START_OVER.value, DecisionKind.NO_MOVE.value)


def determined(
    schedule: Schedule, marks: Iterable[tuple[int, int]], decisions: Iterable[DecisionRecord]
) -> tuple[str, ...]:
    """One line per act, in order, and one for the end. `marks`: how many decisions there were at the two halts of every
    act, and at the last one."""
    told, bounds = list(decisions), list(marks)
    lines = []
    for act, (early, late), (after, _) in zip(schedule.acts, bounds, bounds[1:], strict=False):
        asked = f"spares {', '.join(map(str, act.spares))}; " if act.spares else ""
        back = "whole again; " if any(d.kind == DecisionKind.RESUMED.value for d in told[early:late]) else ""
        lines.append(f"act {act.number}, {act.happening}: {asked}{back}{_of_act(act, told[late:after])}")
    end = [f"{d.kind}: {d.reason}" for d in told if d.kind in _ENDS]
    return (*lines, *end)


def _of_act(act: Act, decisions: list[DecisionRecord]) -> str:
    words = {f"rank {d.rank} {_LOST[d.kind]}" for d in decisions if d.kind in _LOST}
    words -= {f"rank {fault.rank} hung" for fault in act.faults if fault.kind is Kind.ERROR}
    rungs = {_RUNGS[d.kind] for d in decisions if d.kind in _RUNGS}
    rungs |= {Rung.PEER_MEMORY for d in decisions if d.has(Code.PEER_MEMORY) and _is_verdict(d)}
    words |= {rung.value for rung in rungs or ({Rung.SWAP} if words else set())}
    words |= {sentence(part) for d in decisions for part in d.why.all() if part.code in _DIFFERENCES}
    resumed = [d.step for d in decisions if d.kind == DecisionKind.RESUMED.value]
    if act.step_is_known and resumed:
        words.add(f"resumes at step {resumed[-1]}")
    if len(act.after) < RANKS:
        words.add(f"ranks {', '.join(map(str, act.after))} are left")
    return "; ".join(sorted(words)) or "nothing"


def _is_verdict(decision: DecisionRecord) -> bool:
    return decision.kind in (DecisionKind.VERDICT.value, DecisionKind.REWIND.value)
