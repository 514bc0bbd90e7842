"""What the counters of accelerators say about the ranks that use them. Never run on a real device (docs/detection.md).

The counters are those of NVIDIA's DCGM exporter, in Prometheus' text format. Three pure parts: `parse` reads the text,
`device_of` finds the device of a rank, `DeviceHealth` judges the numbers. Fetching is the agent's business.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from understudy.detection.contract import Action, Evidence, Look, RankLook
from understudy.detection.xids import MEANINGS, UNKNOWN
from understudy.foundation.ids import MemberId

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPED = re.compile(r"\\(.)")
_INDEX_LABELS = ("gpu", "minor_number")
_UUID_LABELS = ("UUID", "uuid")


# -- the text ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Device:
    """One device as the exporter names it; `index` counts all devices of the host."""

    index: int | None
    uuid: str
    numbers: Mapping[str, float]


def parse(text: str) -> tuple[Device, ...]:
    """Every device that the text speaks of. Lines that are no samples, or belong to no device, are passed over."""
    found: dict[tuple[int | None, str], dict[str, float]] = {}
    for line in text.splitlines():
        sample = None if line.lstrip().startswith("#") else _SAMPLE.match(line.strip())
        if sample is None:
            continue
        name, labels_text, value_text = sample.groups()
        labels = dict(_labels(labels_text or ""))
        index = _first_number(labels)
        uuid = next((labels[name] for name in _UUID_LABELS if labels.get(name)), "")
        value = _number(value_text)
        if value is not None and (index is not None or uuid):
            numbers = found.setdefault((index, uuid), {})
            numbers[name] = max(value, numbers.get(name, value))  # one per process or port: the worst
    return tuple(Device(index, uuid, numbers) for (index, uuid), numbers in found.items())


def _labels(text: str) -> Iterator[tuple[str, str]]:
    for match in _LABEL.finditer(text):
        yield match[1], _ESCAPED.sub(lambda escaped: "\n" if escaped[1] == "n" else escaped[1], match[2])


def _first_number(labels: Mapping[str, str]) -> int | None:
    return next((int(labels[name]) for name in _INDEX_LABELS if labels.get(name, "").isdecimal()), None)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# -- from devices to ranks --------------------------------------------------------------------------------------------


class Listed(Protocol):
    """A device, as any source names it."""

    @property
    def index(self) -> int | None: ...

    @property
    def uuid(self) -> str: ...


_Listed = TypeVar("_Listed", bound=Listed)


def device_of(local_rank: int, devices: Sequence[_Listed], visible: str | None) -> _Listed | None:
    """The one that the rank with this place on its host uses: device number `local_rank` of those that
    CUDA_VISIBLE_DEVICES (`visible`) lists, by number or by UUID. None where no device fits."""
    wanted = str(local_rank)
    if visible is not None and visible.strip():
        listed = [part.strip() for part in visible.split(",")]
        if local_rank >= len(listed):
            return None
        wanted = listed[local_rank]
    for device in devices:
        by_uuid = bool(device.uuid) and len(wanted) > 3 and device.uuid.startswith(wanted)
        if by_uuid or (wanted.isdecimal() and len(wanted) < 10 and device.index == int(wanted)):
            return device
    return None


def numbers_of(local_rank: int, devices: tuple[Device, ...], visible: str | None) -> Mapping[str, float]:
    """Of the device of a rank. Empty where there is none."""
    device = device_of(local_rank, devices, visible)
    return {} if device is None else device.numbers


# -- rules ------------------------------------------------------------------------------------------------------------

_XID = "DCGM_FI_DEV_XID_ERRORS"
_ACTIONS: Mapping[int, Action] = {
    48: Action.REPLACE,
    63: Action.MOVE,
    64: Action.REPLACE,
    74: Action.MOVE,
    79: Action.REPLACE,
    94: Action.MOVE,
    95: Action.REPLACE,
    119: Action.MOVE,
    120: Action.MOVE,
}
"""For Xids while the process lives; all others are noted. The exporter shows the last one, and goes on showing it."""


@dataclass(frozen=True, slots=True)
class Grown:
    """A counter that went up by `by` or more since the last look."""

    metric: str
    meaning: str
    action: Action
    by: float = 1.0


@dataclass(frozen=True, slots=True)
class Above:
    """A state that is at or above `limit` for `looks` looks with new numbers in a row."""

    metric: str
    meaning: str
    action: Action
    limit: float
    looks: int = 1


_GROWN = (
    Grown("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "double-bit ECC errors: memory was wrong and not corrected", Action.REPLACE),
    Grown("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "rows remapped after uncorrectable errors", Action.MOVE),
    Grown("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "NVLink had to recover", Action.MOVE),
    Grown("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVLink packets were sent again", Action.NOTE, by=100),
    Grown("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVLink packets came damaged", Action.NOTE, by=100),
    Grown("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "NVLink data came damaged", Action.NOTE, by=100),
    Grown("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe packets were sent again", Action.NOTE, by=100),
)
_ABOVE = (
    Above("DCGM_FI_DEV_ROW_REMAP_FAILURE", "rows of memory could not be remapped", Action.REPLACE, 1),
    Above("DCGM_FI_DEV_ROW_REMAP_PENDING", "a row of memory waits for a reset to be remapped", Action.MOVE, 1),
    Above("DCGM_FI_DEV_GPU_TEMP", "degrees Celsius; it slows down or switches off soon", Action.NOTE, 90, looks=3),
    Above("DCGM_FI_DEV_MEMORY_TEMP", "degrees Celsius of its memory", Action.NOTE, 100, looks=3),
)


@dataclass(slots=True)
class _Known:
    """One member: its last numbers, what was said of it, and for how many looks a state has been over its limit."""

    numbers: Mapping[str, float]
    over: dict[str, int] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)


class DeviceHealth:
    """A detector. The first look at a member only learns what its device's counters are, for they never go down; states
    count from the first look on."""

    contract_version = 1

    def __init__(self) -> None:
        self._known: dict[MemberId, _Known] = {}

    def look(self, look: Look) -> tuple[Evidence, ...]:
        for gone in self._known.keys() - look.ranks.keys():
            del self._known[gone]
        evidence: list[Evidence] = []
        for member, seen in look.ranks.items():
            if seen.rank is None or not seen.numbers:
                continue
            known = self._known.get(member)
            former = seen.numbers if known is None else known.numbers
            if known is None:
                known = self._known[member] = _Known(seen.numbers)
            elif known.numbers is seen.numbers:
                continue  # nothing was fetched since
            evidence += self._judge(look.now, seen, known, former)
            known.numbers = seen.numbers
        return tuple(evidence)

    def _judge(self, now: float, seen: RankLook, known: _Known, former: Mapping[str, float]) -> Iterator[Evidence]:
        numbers = seen.numbers
        code = numbers.get(_XID, 0.0)
        if code > 0 and code != former.get(_XID, 0.0):
            action, meaning = _ACTIONS.get(int(code), Action.NOTE), MEANINGS.get(int(code), UNKNOWN)
            yield _evidence(now, seen, action, f"the driver reports Xid {int(code)}: {meaning.text}")
        for grown in _GROWN:
            growth = numbers.get(grown.metric, 0.0) - former.get(grown.metric, math.inf)
            if growth >= grown.by:
                text = f"{grown.metric} grew by {growth:g} to {numbers[grown.metric]:g}: {grown.meaning}"
                yield _evidence(now, seen, grown.action, text)
        for above in _ABOVE:
            if numbers.get(above.metric, -math.inf) < above.limit:
                known.over.pop(above.metric, None)
                known.said.discard(above.metric)
                continue
            known.over[above.metric] = known.over.get(above.metric, 0) + 1
            if known.over[above.metric] >= above.looks and above.metric not in known.said:
                known.said.add(above.metric)
                text = f"{above.metric} is {numbers[above.metric]:g} (limit {above.limit:g}): {above.meaning}"
                yield _evidence(now, seen, above.action, text)


def _evidence(now: float, seen: RankLook, action: Action, what: str) -> Evidence:
    text = f"the device of rank {seen.rank} ({seen.member}): {what}"
    return Evidence(at=now, kind="device", text=text, action=action, rank=seen.rank, member=seen.member)
