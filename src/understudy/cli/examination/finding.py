"""What the doctor says: one line per finding, and what to do about it under it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """`wrong`: nothing works like this. Otherwise it only costs something, and `what` says what."""

    what: str
    good: bool
    wrong: bool = False
    advice: str = ""

    def __str__(self) -> str:
        mark = "ok  " if self.good else "BAD " if self.wrong else "note"
        advice = f"\n      {self.advice}" if self.advice and not self.good else ""
        return f"{mark}  {self.what}{advice}"


def span(seconds: float) -> str:
    """A length of time for a person."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.1f} s" if seconds < 100 and not seconds.is_integer() else f"{seconds:.0f} s"


def rate(bytes_per_second: float) -> str:
    """Megabytes, because states are counted in bytes and not in bits."""
    return f"{bytes_per_second / 1e6:.3g} MB/s" if bytes_per_second < 1e9 else f"{bytes_per_second / 1e9:.2f} GB/s"


def amount(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e9:.4g} GB"


def roundly_above(value: float) -> float:
    """The next number with two digits, for advice."""
    if value <= 0:
        return 0.0
    digits = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(round(value / digits, 6)) * digits:.6g}")
