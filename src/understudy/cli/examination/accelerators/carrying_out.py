"""Carries out parts, trial by trial, and says what came of each. No trial ends those after it."""

import time
from collections.abc import Iterable, Iterator, Sequence

from understudy.cli.examination.accelerators.contract import (
    Bench,
    Disproved,
    NotShown,
    Part,
    Result,
    Shown,
    Trial,
    Verdict,
)
from understudy.cli.examination.finding import Finding, span


def results_of(part: Part, bench: Bench) -> Iterator[Result]:
    try:
        trials = part.trials(bench)
    except NotShown as why:
        yield Result(part=part.letter, trial="all", verdict=Verdict.NOT_SHOWN, sentence=str(why), advice=why.advice)
        return
    for trial in trials:
        bench.trial = f"{part.letter}-{trial.name}"
        yield _carry_out(part, trial, bench)


def _carry_out(part: Part, trial: Trial, bench: Bench) -> Result:
    began = time.monotonic()

    def result(verdict: Verdict, came: Shown, advice: str = "") -> Result:
        seconds = round(time.monotonic() - began, 3)
        return Result(
            part=part.letter,
            trial=trial.name,
            verdict=verdict,
            sentence=came.sentence,
            figures=came.figures,
            advice=advice,
            seconds=seconds,
        )

    missing = trial.missing(bench)
    if missing is not None:
        return result(Verdict.NOT_SHOWN, Shown(missing))
    try:
        return result(Verdict.SHOWN, trial.carry_out(bench))
    except NotShown as why:
        return result(Verdict.NOT_SHOWN, Shown(str(why), why.figures), why.advice)
    except Disproved as why:
        return result(Verdict.FAILED, Shown(str(why), why.figures), why.advice)
    except Exception as error:  # of a driver, of an engine, of a process that died: a finding like others
        if _comes_of_an_interrupt(error):
            raise KeyboardInterrupt from error
        return result(Verdict.FAILED, Shown(f"{type(error).__name__}: {error}"), "send the archive back: it says more")


def _comes_of_an_interrupt(error: BaseException | None) -> bool:
    """Ctrl-C broke off a trial, and what the trial then did to clean up failed: that hides the interrupt."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def finding(result: Result) -> Finding:
    """As the doctor prints it."""
    took = f" ({span(result.seconds)})" if result.seconds >= 1 else ""
    return Finding(
        f"{result.part} {result.trial}: {'' if result.verdict is not Verdict.NOT_SHOWN else 'not shown: '}"
        f"{result.sentence}{took}",
        good=result.verdict is Verdict.SHOWN,
        wrong=result.verdict is Verdict.FAILED,
        advice=result.advice,
    )


def summary(results: Sequence[Result], emulated: bool) -> str:
    """The last line."""
    by_verdict = {verdict: [each for each in results if each.verdict is verdict] for verdict in Verdict}
    where = " on an emulated device, which says nothing about a GPU" if emulated else ""
    told = [f"{len(by_verdict[Verdict.SHOWN])} of {len(results)} shown{where}"]
    parts = _by_part(by_verdict[Verdict.SHOWN])
    told[0] += f" ({parts})" if parts else ""
    told += [
        f"{len(by_verdict[verdict])} {verdict} ({_by_part(by_verdict[verdict])})"
        for verdict in (Verdict.NOT_SHOWN, Verdict.FAILED)
        if by_verdict[verdict]
    ]
    return f"accelerators: {'; '.join(told)}"


def all_shown(results: Iterable[Result]) -> bool:
    return all(result.verdict is Verdict.SHOWN for result in results)


def _by_part(results: Sequence[Result]) -> str:
    parts: dict[str, list[str]] = {}
    for result in results:
        parts.setdefault(result.part, []).append(result.trial)
    return "; ".join(f"{letter}: {', '.join(names)}" for letter, names in sorted(parts.items()))
