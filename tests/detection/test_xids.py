"""Faults of devices in the kernel's log. The lines are made up after public examples: there was no device."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.detection.device_health import _ACTIONS
from understudy.detection.xids import MEANINGS, Xid, gravest, read_line, same_place
from understudy.protocol.causes import Afterwards

OFF_THE_BUS = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("line", "xid"),
    [
        (OFF_THE_BUS, Xid("0000:3b:00", 79)),
        (f"4,1234,5678901,-;{OFF_THE_BUS}", Xid("0000:3b:00", 79)),
        ("NVRM: Xid (0000:03:00): 31, Ch 00000010", Xid("0000:03:00", 31)),
        ("NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Warp", Xid("0000:cb:00", 13)),
        ("NVRM: GPU at PCI:0000:3b:00: GPU-1234", None),
        ("usb 1-1: new device", None),
    ],
)
def test_lines(line: str, xid: Xid | None) -> None:
    assert read_line(line) == xid


@given(st.text())
def test_no_line_makes_the_reader_fail(text: str) -> None:
    read_line(text)
    read_line(f"NVRM: Xid (PCI:{text}): {text}")


@pytest.mark.parametrize(
    ("code", "afterwards"),
    [(code, Afterwards.AGAIN) for code in (13, 31, 43, 94)]
    + [(code, Afterwards.NEVER) for code in (48, 64, 74, 79, 95, 119, 120)]
    + [(12345, Afterwards.UNKNOWN)],
)
def test_classes(code: int, afterwards: Afterwards) -> None:
    fault = gravest([code])
    assert fault is not None and fault.afterwards is afterwards and f"Xid {code}" in fault.text
    assert fault.blames_script == (code in (13, 31, 43))


def test_the_gravest_counts_and_of_those_the_newest() -> None:
    """The driver reports the end of every process, too, and other faults that follow from the first one."""
    assert gravest([45]) is None and gravest([]) is None
    fault = gravest([13, 79, 119, 43, 45])
    assert fault is not None and fault.text.startswith("Xid 119 ")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0000:3b:00", "0000:3b:00.0", True),
        ("00000000:3B:00.0", "0000:3b:00", True),
        ("3b:00", "0000:3b:00.0", True),
        ("0001:3b:00", "0000:3b:00.0", False),
        ("0000:3c:00", "0000:3b:00.0", False),
        ("", "0000:3b:00.0", False),
    ],
)
def test_places_on_the_bus(one: str, other: str, same: bool) -> None:
    assert same_place(one, other) == same


def test_whatever_is_asked_for_has_a_meaning() -> None:
    assert set(_ACTIONS) <= set(MEANINGS)
