"""Part C. Two processes sum over a group, and one of them is killed or stopped in it. How long does everything take
until a new process is in its slot, and does anything grow from round to round?
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from understudy.cli.examination.accelerators import nvidia_smi
from understudy.cli.examination.accelerators.bench import DEFAULT_GROUP, Pair, Workbench, pair, words
from understudy.cli.examination.accelerators.contract import Disproved, Needs, NotShown, Part, Shown, Trial

_IN_FLIGHT, _IN_FLIGHT_EMULATED = 400, 16  # sums that are queued when the peer is struck
_STANDS = 0.5  # seconds after which what has not ended hangs
_DRAIN = 20.0
_ROUNDS, _ROUNDS_QUICK = 20, 3
_THREE = (DEFAULT_GROUP, "second", "third")
_BALLAST = 4  # GB
_RETURNED = 2.5e9  # bytes of it; a new process takes some again


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Milliseconds of one recovery, on the survivor."""

    abort_ms: float
    drain_ms: float
    probe_ms: float
    replace_ms: float
    connect_ms: float


def connected(ranks: Pair, bench: Workbench) -> float:
    seconds = ranks.connect()
    ranks.require_sums(2, words(bench))
    return seconds


def hang(ranks: Pair, bench: Workbench) -> None:
    """The survivor has queued one sum more than its peer will ever take part in."""
    many = in_flight(bench)
    for rank, turns in ((ranks.victim, many), (ranks.survivor, many + 1)):
        rank.do("all_reduce", groups=ranks.groups, count=1, words=words(bench), turns=turns)


def in_flight(bench: Workbench) -> int:
    return _IN_FLIGHT_EMULATED if bench.emulated else _IN_FLIGHT


def require_hanging(ranks: Pair) -> None:
    time.sleep(_STANDS)
    seen = ranks.survivor.do("complete")
    if seen["complete"]:
        raise Disproved("a sum whose peer was lost came to its end by itself", "send the archive back")


def recover(ranks: Pair, bench: Workbench) -> Stages:
    """The survivor breaks its communicators while its queue hangs in them, and goes on with a new peer."""
    abort = ranks.survivor.timed("abandon", beside=True).took
    drained = ranks.survivor.timed("drain", seconds=_DRAIN).took
    probed = ranks.survivor.timed("probe", seconds=_DRAIN).took
    began = time.monotonic()
    ranks.replace()
    replaced = time.monotonic() - began
    return Stages(
        abort_ms=1000 * abort,
        drain_ms=1000 * drained,
        probe_ms=1000 * probed,
        replace_ms=1000 * replaced,
        connect_ms=1000 * connected(ranks, bench),
    )


def _told(stages: Stages) -> str:
    return (
        f"aborted in {stages.abort_ms:.1f} ms, the queue was empty {stages.drain_ms:.1f} ms later, "
        f"its context answers; connected to a new process in {stages.connect_ms:.0f} ms, sums are right"
    )


def _struck(bench: Workbench, blow: str, groups: Sequence[str], variables: Mapping[str, str]) -> Shown:
    with pair(bench, groups, variables) as ranks:
        first = connected(ranks, bench)
        hang(ranks, bench)
        getattr(ranks.victim, blow)()
        require_hanging(ranks)
        stages = recover(ranks, bench)
    figures = {name: round(value, 2) for name, value in asdict(stages).items()}
    figures["first_connect_ms"] = round(1000 * first, 2)
    return Shown(_told(stages), {**figures, "sums_in_flight": in_flight(bench), "bytes_of_a_sum": 4 * words(bench)})


def _switches(bench: Workbench) -> Shown:
    """Sums in NVLink's switches are another kernel, which must be freed as well."""
    came = {name: _struck(bench, "kill", (DEFAULT_GROUP,), {"NCCL_NVLS_ENABLE": name}) for name in ("1", "0")}
    figures = {f"nvls_{name}": dict(shown.figures) for name, shown in came.items()}
    return Shown(f"with NCCL_NVLS_ENABLE=1: {came['1'].sentence}", figures)


# -- rounds ------------------------------------------------------------------------------------------------------------

_MAY_GROW = {"descriptors": 0.5, "threads": 0.25, "resident_bytes": 2e6}  # per round, beyond the first two
_DEVICE_MAY_SHRINK = 4e6


def _rounds(bench: Workbench) -> Shown:
    count, used = _ROUNDS_QUICK if bench.quick else _ROUNDS, list[Mapping[str, Any]]()
    with pair(bench) as ranks:
        connected(ranks, bench)
        for number in range(count):
            hang(ranks, bench)
            ranks.victim.kill()
            recover(ranks, bench)
            used.append(ranks.survivor.do("usage"))
            if number % 5 == 4:
                bench.tell(f"round {number + 1} of {count}")
    growth = growth_per_round(used)
    figures = {"rounds": count, "per_round": growth, "first": dict(used[0]), "last": dict(used[-1])}
    grown = what_grows(growth)
    if grown and not bench.quick:
        raise Disproved(f"from round to round the survivor needs more: {grown}", "send the archive back", **figures)
    told = f"{grown} (a few rounds say little)" if grown else "memory, descriptors and threads of the survivor stay"
    return Shown(f"{count} rounds of kill and replace: {told}", figures)


def growth_per_round(used: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """From the second round to the last: the first one loads and allocates what stays."""
    first, last, rounds = used[min(1, len(used) - 1)], used[-1], max(1, len(used) - 2)
    return {
        name: round((last[name] - first[name]) / rounds, 2)
        for name in first
        if first[name] is not None and last[name] is not None
    }


def what_grows(growth: Mapping[str, float]) -> str:
    grown = [f"{name} {growth[name]:+g}" for name, most in _MAY_GROW.items() if growth.get(name, 0.0) > most]
    if growth.get("free_device_bytes", 0.0) < -_DEVICE_MAY_SHRINK:
        grown.append(f"free_device_bytes {growth['free_device_bytes']:+g}")
    return ", ".join(grown)


def _memory_returns(bench: Workbench) -> Shown:
    """At which stage is what the dead process had on its device free again? A spare that shares the device cannot
    allocate it before. Untested: no GPU was at hand."""
    of_victim = nvidia_smi.index_of(1, bench.environment)
    with pair(bench) as ranks:
        connected(ranks, bench)
        empty = nvidia_smi.used_bytes(of_victim)
        ranks.victim.do("ballast", gigabytes=_BALLAST)
        full = nvidia_smi.used_bytes(of_victim)
        if full - empty < _RETURNED:
            raise NotShown("nvidia-smi does not show what a process takes on its device")
        hang(ranks, bench)
        for stage, act in _stages(ranks, bench).items():
            act()
            seconds = nvidia_smi.until_free(of_victim, full - _RETURNED)
            if seconds is not None:
                figures = {"stage": stage, "seconds": round(seconds, 2), "bytes": full - empty}
                return Shown(f"free {seconds:.1f} s after {stage}", figures)
    raise Disproved("the memory of a dead process does not become free while its peer lives", "send the archive back")


def _stages(ranks: Pair, bench: Workbench) -> dict[str, Callable[[], object]]:
    def abort() -> None:
        ranks.survivor.do("abandon", beside=True)
        ranks.survivor.do("drain", seconds=_DRAIN)

    def connect() -> None:
        ranks.replace()
        connected(ranks, bench)

    return {
        "the end of the process": ranks.victim.kill,
        "the survivor's abort": abort,
        "the connection to a new process": connect,
    }


def _trials(_bench: Workbench) -> Sequence[Trial]:
    two, driver = Needs(devices=2), Needs(devices=2, driver=True)

    def struck(blow: str, groups: Sequence[str] = (DEFAULT_GROUP,)) -> Any:
        return partial(_struck, blow=blow, groups=groups, variables={})

    return (
        Trial(name="killed", carry_out=struck("kill"), needs=two),
        Trial(name="stopped", carry_out=struck("stop"), needs=two),
        Trial(name="three-groups", carry_out=struck("kill", _THREE), needs=two),
        Trial(name="rounds", carry_out=_rounds, needs=two),
        Trial(name="switches", carry_out=_switches, needs=driver),
        Trial(name="memory-returns", carry_out=_memory_returns, needs=driver),
    )


PART = Part(letter="C", title="two processes", trials=_trials)
