"""The clocks of this host, and how far the wall clock of another one is off.

Understudy measures all its deadlines with the monotonic clock of one host and never compares clocks of hosts. What is
compared is the time at which an alert began (`startsAt`), which a monitor writes by its own wall clock.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from understudy.cli.examination.finding import Finding, span

_LOOK_FOR = 0.05  # seconds between two readings
_COARSE = 0.001  # seconds; progress and phases are told in milliseconds
_SLEPT = 1.0  # seconds of suspension that are worth a line
_SLEPT_MEANWHILE = 0.02
_FAR_OFF = 5.0  # seconds between two wall clocks


@dataclass(frozen=True, slots=True)
class Reading:
    """`awake` stands still while the host is suspended, `always` goes on."""

    awake: float
    always: float

    @property
    def slept(self) -> float:
        return self.always - self.awake


def read() -> Reading:
    return Reading(time.clock_gettime(time.CLOCK_MONOTONIC), time.clock_gettime(time.CLOCK_BOOTTIME))


def clocks() -> Iterator[Finding]:
    before = read()
    time.sleep(_LOOK_FOR)
    return judge(before, read(), time.clock_getres(time.CLOCK_MONOTONIC))


def judge(before: Reading, after: Reading, resolution: float) -> Iterator[Finding]:
    if after.awake <= before.awake:
        yield Finding(
            "the monotonic clock does not go on",
            good=False,
            wrong=True,
            advice="no deadline ends on this host: look at its clock source (/sys/devices/system/clocksource)",
        )
        return
    yield Finding(
        f"the monotonic clock goes on, in units of {resolution * 1e9:.0f} ns",
        good=resolution <= _COARSE,
        advice="that is coarse: times of steps and phases are not to be trusted",
    )
    if after.slept - before.slept > _SLEPT_MEANWHILE:
        yield Finding(
            f"this host was suspended for {span(after.slept - before.slept)} just now",
            good=False,
            advice="a host that sleeps counts as lost, and its ranks as hanging: turn suspending off",
        )
    elif after.slept > _SLEPT:
        yield Finding(
            f"this host was suspended for {span(after.slept)} in all since it was started",
            good=False,
            advice="while it trains it must not be: its ranks would count as hanging, and it as lost",
        )


def wall_offset(seconds: float, uncertain: float, peer: str) -> Finding:
    """`seconds`: how far the other one's wall clock is ahead of ours."""
    direction = "ahead of" if seconds >= 0 else "behind"
    return Finding(
        f"the wall clock of {peer} is {span(abs(seconds))} {direction} ours (give or take {span(uncertain)})",
        good=abs(seconds) <= _FAR_OFF,
        advice="no deadline depends on it. But alerts carry wall clock times: one may look older than the process it "
        "is about, and then is only recorded. Set the clocks (chrony, ntpd)",
    )
