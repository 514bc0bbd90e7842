"""What the driver of NVIDIA's devices writes into the kernel's log about a fault (an Xid), and what each number means.

Never seen on a real device (docs/detection.md): the classes follow NVIDIA's public catalogue. Pure: lines go in.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from understudy.protocol.causes import Afterwards, DeviceFault

_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,6})\b")
_AGAIN, _NEVER = Afterwards.AGAIN, Afterwards.NEVER
_GRAVITY = (Afterwards.AGAIN, Afterwards.UNKNOWN, Afterwards.NEVER)


def _means(text: str, afterwards: Afterwards, *, script: bool = False) -> DeviceFault:
    return DeviceFault(text=text, afterwards=afterwards, blames_script=script)


MEANINGS: Mapping[int, DeviceFault] = {
    13: _means("graphics engine exception, mostly a fault of the program", _AGAIN, script=True),
    31: _means("memory page fault, mostly a fault of the program", _AGAIN, script=True),
    43: _means("the device stopped processing, mostly a fault of the program", _AGAIN, script=True),
    45: _means("work was taken down, a consequence of an earlier error", _AGAIN),
    48: _means("double-bit ECC error", _NEVER),
    63: _means("a row of memory was remapped; the device needs a reset", _AGAIN),
    64: _means("a row of memory could not be remapped", _NEVER),
    74: _means("NVLink error", _NEVER),
    79: _means("the device has fallen off the bus", _NEVER),
    92: _means("a high rate of single-bit ECC errors", _AGAIN),
    94: _means("a contained ECC error", _AGAIN),
    95: _means("an uncontained ECC error: what was computed since cannot be trusted", _NEVER),
    119: _means("the device's system processor does not answer", _NEVER),
    120: _means("error of the device's system processor", _NEVER),
}
UNKNOWN = _means("see NVIDIA's list of Xid errors", Afterwards.UNKNOWN)
_SAYS_NOTHING = {45}
"""It is reported whenever a process is ended, too."""


@dataclass(frozen=True, slots=True)
class Xid:
    """`bus`: the place of its device, as the line writes it."""

    bus: str
    code: int


def read_line(line: str) -> Xid | None:
    found = _LINE.search(line)
    return None if found is None else Xid(found[1], int(found[2]))


def gravest(codes: Sequence[int]) -> DeviceFault | None:
    """What several of them, in their order, say of a device: one that means the worst, and of those the newest."""
    worst: DeviceFault | None = None
    for code in codes:
        if code in _SAYS_NOTHING:
            continue
        meaning = MEANINGS.get(code, UNKNOWN)
        if worst is None or _GRAVITY.index(meaning.afterwards) >= _GRAVITY.index(worst.afterwards):
            worst = replace(meaning, text=f"Xid {code} ({meaning.text})")
    return worst


def same_place(one: str, other: str) -> bool:
    """On the bus. The domain has four digits or eight, and the function may be missing."""
    return _place(one) == _place(other)


def _place(bus: str) -> tuple[str, ...]:
    *domain, number, device = ("", *bus.lower().split(":"))
    return "".join(domain).lstrip("0"), number, device.partition(".")[0]
