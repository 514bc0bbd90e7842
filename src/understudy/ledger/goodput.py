"""Goodput: which share of a job's time was training that counts, and where the rest went, by cause.

Knows: seconds that `coordinator.goodput_clock` has measured, how they add up, and their words. A run's
newest account lies beside its decisions (`goodput.jsonl`); every line is the whole account so far.
"""

from pathlib import Path

import msgspec

GOODPUT = "goodput"
"""The file of a ledger with accounts."""


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds since the job began. `productive`: of steps that count, ranks that were absent taken off. `setup`: until
    the first step was committed. `recovering`: from the opening of a recovery until all ranks resumed, by the code of
    its first reason. `repeated`: of training before a fault that had to be done again, detection among it.
    `degraded`: the share of absent ranks in the time without them. `steps`: committed by every rank."""

    productive: float = 0.0
    setup: float = 0.0
    recovering: dict[str, float] = {}
    repeated: float = 0.0
    degraded: float = 0.0
    steps: int = 0

    @property
    def total(self) -> float:
        return self.productive + self.setup + sum(self.recovering.values()) + self.repeated + self.degraded

    @property
    def ratio(self) -> float | None:
        """None before anything has happened."""
        return self.productive / self.total if self.total > 0 else None

    def losses(self) -> dict[str, float]:
        """Seconds by what they went to, the largest first; nothing that took none."""
        found = {"setup": self.setup, "repeated": self.repeated, "degraded": self.degraded}
        found |= {f"recovering ({words(code)})": seconds for code, seconds in self.recovering.items()}
        return {name: found[name] for name in sorted(found, key=lambda name: -found[name]) if found[name] > 0}

    def sentence(self) -> str:
        """One line for people."""
        if self.ratio is None:
            return "goodput: nothing has been trained yet"
        told = [f"{name} {_percent(seconds / self.total)}" for name, seconds in self.losses().items()]
        rest = f"; {', '.join(told)}" if told else ""
        return f"goodput {_percent(self.ratio)} of {span(self.total)}{rest}"


def words(code: str) -> str:
    """A code for people: rank_lost is rank lost."""
    return code.replace("_", " ") or "unknown"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.9995 else "100 %"


def span(seconds: float) -> str:
    """Rounded to what one wants to know."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02} h" if hours else f"{rest // 60}:{rest % 60:02} min"


def read(folder: Path) -> Goodput | None:
    """The newest account of a run; None if there is none that can be read."""
    try:
        lines = (folder / "ledger" / f"{GOODPUT}.jsonl").read_bytes().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            return msgspec.json.decode(line, type=Goodput)
        except msgspec.MsgspecError:
            continue  # torn by the death of its writer, or a mark of missing lines
    return None
