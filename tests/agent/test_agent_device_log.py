"""The kernel's log, with a file in its place."""

from pathlib import Path

import pytest

from understudy.agent.device_log import DeviceLog
from understudy.protocol.causes import Afterwards, DeviceFault
from understudy.wire.inventory import Device

TWO = (Device(slot=0, pci_bus_id="0000:3b:00.0"), Device(slot=1, pci_bus_id="0000:5e:00.0"))


def xid(bus: str, code: int) -> str:
    return f"4,1,2,-;NVRM: Xid (PCI:{bus}): {code}, pid=1, name=python, words\n"


class Kept:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "kmsg"
        self.file.write_text(xid("0000:3b:00", 48))  # before the agent began
        self.said: list[str] = []
        self.log = DeviceLog(TWO, self.said.append, str(self.file))

    def write(self, text: str) -> None:
        with self.file.open("a") as opened:
            opened.write(text)

    def fault(self, device: int, since: float = 0.0) -> DeviceFault | None:
        return self.log.fault_of(device, since)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_what_was_there_before_the_job_says_nothing(kept: Kept) -> None:
    kept.log.look(1.0)
    assert kept.fault(0) is None and kept.said == []


def test_a_fault_belongs_to_the_device_at_its_place_on_the_bus(kept: Kept) -> None:
    kept.write("6,1,2,-;something else\n" + xid("0000:5e:00", 79))
    kept.log.look(1.0)
    fault = kept.fault(1)
    assert fault is not None and fault.afterwards is Afterwards.NEVER
    assert fault.text == "Xid 79 (the device has fallen off the bus)"
    assert kept.fault(0) is None and kept.fault(7) is None


def test_a_fault_of_the_time_before_a_process_is_not_its(kept: Kept) -> None:
    kept.write(xid("0000:5e:00", 13))
    kept.log.look(1.0)
    assert kept.fault(1, since=0.5) is not None and kept.fault(1, since=1.5) is None


def test_a_line_that_comes_in_two_parts_is_read_once_it_is_whole(kept: Kept) -> None:
    line = xid("0000:3b:00", 95)
    kept.write(line[:30])
    kept.log.look(1.0)
    assert kept.fault(0) is None
    kept.write(line[30:])
    kept.log.look(2.0)
    assert kept.fault(0) is not None


def test_a_log_that_may_not_be_read_is_said_once_and_nothing_depends_on_it(tmp_path: Path) -> None:
    said: list[str] = []
    log = DeviceLog(TWO, said.append, str(tmp_path / "nowhere"))
    for now in (1.0, 2.0):
        log.look(now)
    assert log.fault_of(0, 0.0) is None and len(said) == 1 and "cannot be read" in said[0]
    log.close()


def test_a_host_without_devices_opens_nothing_and_says_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    log = DeviceLog((), said.append, str(tmp_path / "nowhere"))
    log.look(1.0)
    assert said == [] and log.fault_of(0, 0.0) is None
