"""Part D. An optimizer is queued behind a sum that hangs. Without the fence it must be damaged when the sum is broken
off, or else the test would prove nothing; with the fence nothing may change, and the step that is run again must be
exact.
"""

import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from understudy.cli.examination.accelerators.bench import Pair, Workbench, pair, words
from understudy.cli.examination.accelerators.contract import Disproved, Figures, Needs, NotShown, Part, Shown, Trial
from understudy.cli.examination.accelerators.rank import Rank, RankFailed

_DRAIN = 20.0
_ENDS_BY_ITSELF = 5.0  # seconds in which a queue whose peer has aborted comes to its end, if it does
_AT_FENCE = 5.0
_BUSY, _PACE, _MOST_AHEAD = 1.5, 20, 400  # seconds of sums, how many are measured, and the most that are queued


@dataclass(frozen=True, slots=True)
class Known:
    """Digests of the state before and after the one step that there is, without any fault."""

    before: str
    after: str


def _prepared(ranks: Pair, bench: Workbench) -> Known:
    """The ranks have done the step once, undisturbed, and are where they were before it."""
    ranks.connect()
    before = _begin(ranks)
    _step(ranks, bench)
    after = _digests(ranks)
    _begin(ranks)
    if before == after:
        raise Disproved("a step changes nothing", "send the archive back")
    return Known(before, after)


def _begin(ranks: Pair) -> str:
    return _one([str(told["digest"]) for told in ranks.both("begin_training")])


def _digests(ranks: Pair) -> str:
    return _one([str(told["digest"]) for told in ranks.both("digest")])


def _one(digests: Sequence[str]) -> str:
    if len(set(digests)) > 1:
        raise Disproved(f"two ranks that did the same hold different states: {', '.join(digests)}")
    return digests[0]


def _step(ranks: Pair, bench: Workbench) -> None:
    folder = str(bench.folder())
    told = ranks.both("step", fenced=True, generation=ranks.generation, folder=folder)
    if any(each["abandoned"] for each in told):
        raise Disproved("a step without a fault was abandoned at its fence")


def _unfenced(ranks: Pair, bench: Workbench) -> None:
    ranks.survivor.do("step", fenced=False, generation=ranks.generation, folder=str(bench.folder()))


def _digest_after_abort(ranks: Pair) -> str:
    ranks.survivor.do("abandon", beside=True)
    ranks.survivor.do("drain", seconds=_DRAIN)
    return str(ranks.survivor.do("digest")["digest"])


# -- without the fence -------------------------------------------------------------------------------------------------


def _own_abort_damages(bench: Workbench) -> Shown:
    with pair(bench) as ranks:
        known = _prepared(ranks, bench)
        ranks.victim.kill()
        _unfenced(ranks, bench)
        came = _digest_after_abort(ranks)
    return damaged(known, came, "a survivor's own abort")


def damaged(known: Known, came: str, by: str) -> Shown:
    figures = {"before": known.before, "after": known.after, "came": came}
    if came in (known.before, known.after):
        state = "as before the step" if came == known.before else "as after a step without faults"
        raise Disproved(
            f"without a fence, {by} left the state {state}: what the fence is for was not seen here, so the "
            "trials with the fence prove nothing",
            "send the archive back",
            **figures,
        )
    return Shown(
        f"without a fence, {by} lets the optimizer apply what is no gradient: there is something to prove", figures
    )


def _peers_abort(bench: Workbench) -> Shown:
    """Either answer is worth knowing: does a sum end well, with garbage, on a rank that has not aborted?"""
    with pair(bench) as ranks:
        known = _prepared(ranks, bench)
        _peer_aborts(ranks, bench)
        _unfenced(ranks, bench)
        try:
            ranks.survivor.do("drain", seconds=_ENDS_BY_ITSELF)
        except RankFailed:
            came = _digest_after_abort(ranks)
            figures = {"ends": False, "before": known.before, "after": known.after, "came": came}
            return Shown("a sum whose peer has aborted hangs until the survivor aborts as well", figures)
        came = str(ranks.survivor.do("digest")["digest"])
        errors = bool(ranks.survivor.do("complete")["broken"])
    figures = {"ends": True, "error_seen": errors, "before": known.before, "after": known.after, "came": came}
    if came == known.after:
        return Shown("a sum whose peer has aborted ended with the right values", figures)
    noticed = "and an error of its own" if errors else "and no error is to be seen"
    return Shown(f"a sum whose peer has aborted ends with garbage on the survivor, {noticed}", figures)


def _peer_aborts(ranks: Pair, bench: Workbench) -> None:
    """In the sums of its gradients, before the survivor takes part in them."""
    ranks.victim.do("step", fenced=False, update=False, generation=ranks.generation, folder=str(bench.folder()))
    ranks.victim.do("abandon", beside=True)


# -- with the fence ----------------------------------------------------------------------------------------------------


class Case(enum.StrEnum):
    GONE = "device"  # the peer is gone before the sums: the survivor's device hangs in them
    ABORTED = "fence"  # the peer has aborted in the sums, and the survivor may believe that they ended well
    AHEAD = "ahead"  # both hosts are far ahead of their devices when the peer is killed


def _fence_holds(bench: Workbench, case: Case) -> Shown:
    with pair(bench) as ranks:
        known = _prepared(ranks, bench)
        asked, waited_at = _strike(ranks, bench, case)
        ranks.survivor.do("abandon", beside=True)
        abandoned = bool(ranks.survivor.end(asked).content["abandoned"])
        ranks.survivor.do("drain", seconds=_DRAIN)
        ranks.survivor.do("probe", seconds=_DRAIN)
        held = str(ranks.survivor.do("digest")["digest"])
        figures = {"before": known.before, "after": known.after, "held": held, "waited_at": waited_at}
        judge_held(case, known, held, abandoned, figures)
        ranks.replace()
        ranks.connect()
        ranks.victim.do("begin_training")
        _step(ranks, bench)
        came = _digests(ranks)
    if came != known.after:
        raise Disproved("the step that was run again gave another state", "send the archive back", **figures, came=came)
    return Shown("nothing was applied, and the step that was run again with a new process is exact", figures)


def _strike(ranks: Pair, bench: Workbench, case: Case) -> tuple[int, str]:
    """The survivor's step, which is asked for, and where it waits."""
    step: dict[str, Any] = {"fenced": True, "generation": ranks.generation, "folder": str(bench.folder())}
    if case is Case.AHEAD:
        step |= {"ahead": _ahead(ranks, bench), "words": words(bench)}
        ranks.victim.begin("step", **step)
        asked = ranks.survivor.begin("step", **step)
        _has_queued(ranks.victim)
        where = _has_queued(ranks.survivor)
    elif case is Case.ABORTED:
        _peer_aborts(ranks, bench)
        asked = ranks.survivor.begin("step", **step)
        where = _waits_at(ranks.survivor, case)
    else:
        ranks.victim.kill()
        asked = ranks.survivor.begin("step", **step)
        where = _waits_at(ranks.survivor, case)
    ranks.victim.kill()
    return asked, where


def _ahead(ranks: Pair, bench: Workbench) -> int:
    """So many sums keep a device busy for a while."""
    sums = {"groups": ranks.groups, "count": 1, "words": words(bench), "turns": _PACE}
    ranks.both("all_reduce", **sums)
    began = time.monotonic()
    ranks.both("drain", seconds=_DRAIN)
    each = max(1e-5, (time.monotonic() - began) / _PACE)
    return min(_MOST_AHEAD, max(_PACE, int(_BUSY / each)))


def judge_held(case: Case, known: Known, held: str, abandoned: bool, figures: Figures) -> None:
    if abandoned and held == known.before:
        return
    if case is Case.AHEAD and held == known.after:
        raise NotShown("the devices were through before the peer was killed", "run this part again", **figures)
    raise Disproved("a rank passed its fence though its peer was lost", "do not use this; send the archive", **figures)


def _waits_at(rank: Rank, place: str) -> str:
    """Where it waits: a while is given for the place that is looked for."""
    return _seen(rank, lambda where: where == place)


def _has_queued(rank: Rank) -> str:
    return _seen(rank, lambda where: where not in ("", "queueing"))


def _seen(rank: Rank, enough: Callable[[str], bool]) -> str:
    deadline = time.monotonic() + _AT_FENCE
    while True:
        where = str(rank.do("place", beside=True)["place"])
        if enough(where) or time.monotonic() > deadline:
            return where
        time.sleep(0.01)


_FENCED = {"own-abort-fenced": Case.GONE, "peers-abort-fenced": Case.ABORTED, "ahead-fenced": Case.AHEAD}


def _trials(_bench: Workbench) -> Sequence[Trial]:
    two = Needs(devices=2)
    return (
        Trial(name="own-abort-unfenced", carry_out=_own_abort_damages, needs=two),
        Trial(name="peers-abort-unfenced", carry_out=_peers_abort, needs=two),
        *(Trial(name=name, carry_out=partial(_fence_holds, case=case), needs=two) for name, case in _FENCED.items()),
    )


PART = Part(letter="D", title="teeth", trials=_trials)
