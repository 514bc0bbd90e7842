"""Every limit of a job beside what is expected of it, and how long a recovery will take. Pure.

A limit is good while twice the expectation fits into it. One that is shorter than the expectation, and without which no
recovery ends, is wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from understudy.cli.examination.finding import Finding, amount, rate, roundly_above, span
from understudy.cli.examination.history import RunHistory
from understudy.protocol.policy import Policy

_ROUND_TRIPS = 6  # of TCP, TLS, the call and the greeting, when an agent connects again
_FIRST_PAUSE = 0.15  # seconds before an agent tries to connect again
_NOTICED_BY_TRANSPORT = 2.0  # seconds until a host that fell silent is noticed
_MUCH_SLOWER = 4.0
_TELLING = 16 << 20  # bytes; the speed of less says little


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The way to the peer: bytes per second and seconds."""

    bandwidth: float
    round_trip: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`setting`: what to change. `fatal`: no recovery ends when the limit is shorter than the expectation."""

    name: str
    setting: str
    limit: float
    expected: float | None
    why: str  # where the expectation is from, or why there is none
    fatal: bool = False
    aside: str = ""
    per: float = 1.0  # seconds that one unit of the setting gives


def judge(policy: Policy, history: RunHistory, way: Measured | None) -> Iterator[Finding]:
    yield from _facts(history, way)
    rows = [*_rows(policy, history, way)]
    for row in rows:
        if row.expected is not None:
            yield _judge_row(row, row.expected)
    unknown = [f"{row.name} {round(row.limit, 1):g} s ({row.why})" for row in rows if row.expected is None]
    if unknown:
        yield Finding(f"nothing to compare with: {'; '.join(unknown)}", good=False)
    yield from predictions(policy, history, way)


def _judge_row(row: Row, expected: float) -> Finding:
    enough = roundly_above(2 * expected / row.per)
    return Finding(
        f"{row.name} {round(row.limit, 1):g} s: {span(expected)} expected ({row.why})",
        good=2 * expected <= row.limit,
        wrong=row.fatal and expected >= row.limit,
        advice=f"too tight: give {row.setting} {enough:g} or more{row.aside}",
    )


def _facts(history: RunHistory, way: Measured | None) -> Iterator[Finding]:
    if history.typical_step is not None and history.longest_gap is not None:
        yield Finding(
            f"a step takes {span(history.typical_step)}; the longest time between two was {span(history.longest_gap)}",
            good=True,
        )
    if history.state_bytes is None:
        yield Finding(
            "how large the state of a rank is, is not known: no transfer was seen yet",
            good=False,
            advice="give --state-gb, or move a rank once (`understudy migrate`) and look again",
        )
        return
    speed = "" if history.speed is None else f", and went over the process group with {rate(history.speed)}"
    yield Finding(f"the state of a rank is {amount(history.state_bytes)}{speed}", good=True)
    if way is not None and history.speed is not None and history.state_bytes >= _TELLING:
        slower = way.bandwidth / history.speed
        if slower > _MUCH_SLOWER:
            yield Finding(
                f"transfers of this run were {slower:.0f} times slower than the way that was measured now",
                good=False,
                advice="state may travel over another interface: look at GLOO_SOCKET_IFNAME on every host",
            )


# -- limits -----------------------------------------------------------------------------------------------------------


def _rows(policy: Policy, history: RunHistory, way: Measured | None) -> Iterator[Row]:
    none_yet = "no recovery was seen yet"
    deadline = policy.stall_deadline(history.typical_step or 0.0)
    by_floor = deadline <= policy.stall_floor

    def hang(name: str, expected: float | None, why: str, aside: str = "") -> Row:
        return Row(
            name=name,
            setting="--step-timeout-min" if by_floor else "--step-timeout-factor",
            per=1.0 if by_floor else history.typical_step or 1.0,
            limit=deadline,
            expected=expected,
            why=why,
            aside=aside,
        )

    yield Row(
        name="--busy-timeout",
        setting="--busy-timeout",
        limit=max(policy.busy_timeout, policy.stall_factor * (history.typical_step or 0.0)),
        expected=history.slow_step,
        why="19 of 20 steps are done by then" if history.slow_step is not None else "too few steps were seen",
    )
    yield hang(
        "deadline of ranks that wait for each other (--step-timeout-min, --step-timeout-factor)",
        history.slow_step,
        "19 of 20 steps are done by then" if history.slow_step is not None else "too few steps were seen",
        "; if the script evaluates or saves that often, this is not about steps and can stay",
    )
    stopped = "the longest in this run" if history.stop is not None else none_yet
    yield hang("the same, for ranks to stop after a fault", history.stop, stopped)
    yield Row(
        name="--idle-timeout",
        setting="--idle-timeout",
        limit=policy.idle_timeout,
        expected=history.longest_gap,
        why="the longest time between two steps" if history.longest_gap is not None else "too few steps were seen",
    )
    yield Row(
        name="--warmup-timeout",
        setting="--warmup-timeout",
        limit=policy.preparation_limit,
        expected=history.preparation,
        why="the longest rehearsal in this run" if history.preparation is not None else "no rehearsal was seen yet",
        fatal=True,
    )
    yield _forming(policy, history, way)
    yield Row(
        name="--host-timeout",
        setting="--host-timeout",
        limit=policy.host_patience,
        expected=None if way is None else _FIRST_PAUSE + _ROUND_TRIPS * way.round_trip,
        why="many hosts only; give --peer" if way is None else "to connect again after a short break",
    )


def _forming(policy: Policy, history: RunHistory, way: Measured | None) -> Row:
    past = (history.forming, "the longest in this run")
    found = [past, (_regroup_and_transfer(history, way), _how_transferred(history, way))]
    known = [(seconds, why) for seconds, why in found if seconds is not None]
    expected, why = max(known, default=(None, "no recovery was seen yet"))
    return Row(
        name="--regroup-timeout",
        setting="--regroup-timeout",
        limit=policy.forming_limit,
        expected=expected,
        why=why,
        fatal=True,
    )


def _transfer(history: RunHistory, way: Measured | None) -> float | None:
    speed = history.speed if way is None else way.bandwidth
    return None if speed is None or history.state_bytes is None else history.state_bytes / speed


def _regroup_and_transfer(history: RunHistory, way: Measured | None) -> float | None:
    transfer = _transfer(history, way)
    return None if transfer is None else transfer + (history.regroup or 0.0)


def _how_transferred(history: RunHistory, way: Measured | None) -> str:
    speed, whose = (
        (history.speed, "as in this run")
        if way is None
        else (way.bandwidth, "as measured to the peer (the slower direction)")
    )
    return f"{amount(history.state_bytes or 0)} at {rate(speed or 0.0)}, {whose}"


# -- how long a recovery takes ----------------------------------------------------------------------------------------


def predictions(policy: Policy, history: RunHistory, way: Measured | None) -> Iterator[Finding]:
    """By what happened before; and by reckoning, where nothing did or the way of the next one was measured."""
    if history.recovery is not None:
        count = "the only one" if history.recoveries == 1 else f"the median of {history.recoveries}"
        yield Finding(f"a recovery took {span(history.recovery)} ({count} in this run)", good=True)
        if way is None:
            return
    transfer = _transfer(history, way)
    if transfer is None:
        yield Finding(
            "how long a recovery will take cannot be foretold: the size of the state, or the speed, is not known",
            good=False,
            advice="give --state-gb and --peer",
        )
        return
    step = history.typical_step or 0.0
    again = f", {span(step)} for a step again" if step else ""
    detect, how = _detection(policy, history, way)
    where = " with a spare on the peer's host" if way is not None else ""
    yield Finding(
        f"a recovery{where} should take about {span(detect + transfer + step)}: {span(detect)} to notice ({how}), "
        f"{span(transfer)} to transfer{again}",
        good=True,
    )


def _detection(policy: Policy, history: RunHistory, way: Measured | None) -> tuple[float, str]:
    if way is not None:
        return _NOTICED_BY_TRANSPORT + policy.host_patience, "a host that falls silent; a process at once"
    if history.detect is not None:
        return history.detect, "as in this run"
    return 0.0, "a process that dies; a hang after its deadline"
