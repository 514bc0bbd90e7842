"""Part B. One process on one device: what the product's design takes for granted about it."""

from collections.abc import Sequence

from understudy.cli.examination.accelerators import nvidia_smi
from understudy.cli.examination.accelerators.bench import Workbench
from understudy.cli.examination.accelerators.contract import Disproved, Needs, NotShown, Part, Shown, Trial

_FENCES, _FENCES_QUICK = 500, 50
_REGISTERED = "registered_to_host_gb_per_s"


def _fork(bench: Workbench) -> Shown:
    """The fork server has imported everything; can what it forks use the device?"""
    if bench.unfit is not None:
        raise Disproved(f"the fork server cannot be used: {bench.unfit}", "spares start slowly; send the archive back")
    rank = bench.bear("forked")
    try:
        if rank.do("was_forked_well")["spoilt"]:
            raise Disproved("the fork server has touched a device", "send the archive back")
        took = rank.timed("take", within=120, place=0, **bench.seams()).took
        probed = rank.timed("probe", seconds=30.0).took
    finally:
        bench.end_ranks()
    figures = {"take_s": round(took, 4), "probe_s": round(probed, 4)}
    return Shown("a process that was forked from the fork server computes on its device", figures)


def _context(bench: Workbench) -> Shown:
    rank = bench.bear("context")
    try:
        took = rank.timed("take", within=120, place=0, **bench.seams()).took
        seconds = took + float(rank.do("context", within=120)["seconds"])
        taken = nvidia_smi.processes().get(rank.pid)
    finally:
        bench.end_ranks()
    if taken is None:
        raise NotShown("nvidia-smi does not name this process (in a container?)", "run it on the host", seconds=seconds)
    return Shown(f"{seconds:.2f} s and {taken / 1e9:.2f} GB", {"seconds": seconds, "bytes": taken})


def _fence_cost(bench: Workbench) -> Shown:
    rank = bench.rank("fence", 0)
    try:
        cost = rank.do("fence_cost", within=120, rounds=_FENCES_QUICK if bench.quick else _FENCES)
    finally:
        bench.end_ranks()
    figures = {name: round(value, 1) for name, value in cost.items()}
    return Shown(
        f"an event on an idle device {cost['idle_us']:.0f} us, behind one operation {cost['behind_one_us']:.0f} us",
        figures,
    )


def _found_inf(bench: Workbench) -> Shown:
    rank = bench.rank("found-inf", 0)
    try:
        told = rank.do("found_inf", within=120)
    finally:
        bench.end_ranks()
    deaf = [name for name, obeys in told.items() if not (obeys["skipped"] and obeys["made"])]
    if deaf:
        raise Disproved(f"{', '.join(deaf)} does not obey found_inf", "send the archive back", **told)
    return Shown(f"fused {', '.join(told)} change nothing while found_inf is 1 on the device", dict(told))


def _digest(bench: Workbench) -> Shown:
    rank = bench.rank("digest", 0)
    try:
        told = rank.do("digests", within=120, megabytes=2 if bench.emulated else 1024, rounds=2 if bench.quick else 5)
    finally:
        bench.end_ranks()
    if not (told["same"] and told["sees_a_bit"]):
        raise Disproved("the digest of a device is not that of the host", "do not trust digests here", **told)
    return Shown(f"the device's digest is the host's, at {told['gb_per_s']:.3g} GB/s", dict(told))


def _pinned_word(bench: Workbench) -> Shown:
    rank = bench.rank("pinned-word", 0)
    try:
        told = rank.do("pinned_word", within=60)
    finally:
        bench.end_ranks()
    if not told["changed_in_time"]:
        raise NotShown("the device was through before the host had changed the word", "run it again", **told)
    if told["arrived"] != 1:
        raise Disproved("a queued copy brought what the word was when it was queued", "send the archive back", **told)
    return Shown("a queued copy reads pinned memory when it is executed, not when it is queued", dict(told))


def _copies(bench: Workbench) -> Shown:
    rank = bench.rank("copies", 0)
    try:
        told = rank.do("copies", within=120)
    finally:
        bench.end_ranks()
    if _REGISTERED not in told:
        raise Disproved(f"shared memory cannot be registered (error {told['register_error']})", "raise memlock", **told)
    speeds = {name: round(value, 2) for name, value in told.items() if name.endswith("gb_per_s")}
    to_host = ", ".join(
        f"{kind} {speeds[f'{kind}_to_host_gb_per_s']:g}" for kind in ("pageable", "pinned", "registered")
    )
    return Shown(f"GB/s to the host: {to_host}", speeds)


def _trials(_bench: Workbench) -> Sequence[Trial]:
    one, driver = Needs(devices=1), Needs(devices=1, driver=True)
    return (
        Trial(name="fork", carry_out=_fork, needs=one),
        Trial(name="fence-cost", carry_out=_fence_cost, needs=one),
        Trial(name="found-inf", carry_out=_found_inf, needs=one),
        Trial(name="digest", carry_out=_digest, needs=one),
        Trial(name="context", carry_out=_context, needs=driver),
        Trial(name="pinned-word", carry_out=_pinned_word, needs=driver),
        Trial(name="copies", carry_out=_copies, needs=driver),
    )


PART = Part(letter="B", title="one device", trials=_trials)
