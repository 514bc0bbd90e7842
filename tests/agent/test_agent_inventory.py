"""What an agent finds out about its host. The files are made up, in the form of the driver's and the kernel's own."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.agent.inventory import cpu_quotas, cpus, devices_in_slots, local_addresses, pod_name, read
from understudy.wire.inventory import Device, HostInventory

FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.0.0.0/24 2 0 2
        |-- 10.0.0.0
           /24 link UNICAST
        |-- 10.0.0.5
           /32 host LOCAL
        |-- 10.0.0.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.0
           /8 host LOCAL
        |-- 127.0.0.1
           /32 host LOCAL
Local:
        |-- 10.0.0.5
           /32 host LOCAL
"""
IF_INET6 = """\
fd000000000000000000000000000002 04 40 00 82     eth0
00000000000000000000000000000001 01 80 10 80       lo
fe8000000000000000fc00fffe000001 04 40 20 80     eth0
"""


def report(minor: object, uuid: str, bus: str, excluded: str = "No") -> str:
    return (
        "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 236\n"
        f"GPU UUID: \t {uuid}\nVideo BIOS: \t 96.00.30.00.01\nBus Type: \t PCIe\n"
        f"Bus Location: \t {bus}\nDevice Minor: \t {minor}\nGPU Excluded:\t {excluded}\n"
    )


TWO = (report(1, "GPU-bbbb", "0000:17:00.0"), report(0, "GPU-aaaa", "0000:65:00.0"))
A, B = ("GPU-aaaa", "0000:65:00.0"), ("GPU-bbbb", "0000:17:00.0")


def slots(reports: tuple[str, ...], visible: str | None = None) -> dict[int, tuple[str, str]]:
    return {device.slot: (device.uuid, device.pci_bus_id) for device in devices_in_slots(reports, visible)}


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, {0: A, 1: B}),
        (" ", {0: A, 1: B}),
        ("1,0", {0: B, 1: A}),
        ("1", {0: B}),
        ("GPU-bbbb, GPU-aa", {0: B, 1: A}),
        ("7,1", {1: B}),
        ("-1", {}),
        ("MIG-1/2/3", {}),
        ("9" * 5000, {}),
    ],
)
def test_which_local_rank_uses_which_device(visible: str | None, found: dict[int, tuple[str, str]]) -> None:
    assert slots(TWO, visible) == found


def test_ten_devices_are_in_the_order_of_numbers_and_not_of_letters() -> None:
    reports = tuple(report(minor, f"GPU-{minor:04}", f"0000:{minor:02x}:00.0") for minor in (10, 2, 0, 9))
    assert [device.uuid for device in devices_in_slots(reports, None)] == [
        "GPU-0000",
        "GPU-0002",
        "GPU-0009",
        "GPU-0010",
    ]


def test_a_device_that_cuda_does_not_count_moves_the_others_up() -> None:
    assert slots((report(0, "GPU-cccc", "0000:01:00.0", excluded="Yes"), report(1, *B))) == {0: B}


def test_a_device_that_was_never_used_has_no_uuid_yet() -> None:
    assert slots((report(0, "GPU-????????-????-????-????-????????????", B[1]),)) == {0: ("", B[1])}


@pytest.mark.parametrize("odd", ["", "\x00\ufffd", report("", "GPU-cccc", ""), report("x", "", ""), report(0, "", "")])
def test_where_one_number_is_not_known_only_uuids_count(odd: str) -> None:
    assert slots((*TWO, odd)) == {}
    assert slots((*TWO, odd), "GPU-bbbb") == {0: B}


@settings(deadline=None)
@given(st.lists(st.text() | st.sampled_from(TWO), max_size=4), st.none() | st.text(), st.text(), st.text())
def test_nothing_that_is_read_makes_it_fail(reports: list[str], visible: str | None, four: str, six: str) -> None:
    found = HostInventory(devices=devices_in_slots(reports, visible), addresses=local_addresses(four, six))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=HostInventory) == found


def test_addresses() -> None:
    assert local_addresses(FIB_TRIE, IF_INET6) == ("10.0.0.5", "fd00::2")
    assert local_addresses("|-- nowhere\n/32 host LOCAL\n/32 host LOCAL", "fd00 04\n\nzz") == ()


@pytest.mark.parametrize(
    ("environment", "pod"),
    [
        ({"POD_NAME": "trainer-0", "HOSTNAME": "h"}, ""),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "trainer-0", "HOSTNAME": "h"}, "trainer-0"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "trainer-1"}, "trainer-1"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ""),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "p" * 201}, ""),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "no text: \udcff"}, ""),
    ],
)
def test_the_pod(environment: Mapping[str, str], pod: str) -> None:
    assert pod_name(environment) == pod


def test_a_host_with_devices(tmp_path: Path) -> None:
    for content, *parts in (
        ("node-1\n", "sys", "kernel", "hostname"),
        (FIB_TRIE, "net", "fib_trie"),
        (IF_INET6, "net", "if_inet6"),
        (TWO[0], "driver", "nvidia", "gpus", "0000:17:00.0", "information"),
        (TWO[1], "driver", "nvidia", "gpus", "0000:65:00.0", "information"),
    ):
        file = tmp_path.joinpath(*parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    assert read({"CUDA_VISIBLE_DEVICES": "1"}, proc=tmp_path) == HostInventory(
        host_name="node-1",
        addresses=("10.0.0.5", "fd00::2"),
        devices=(Device(slot=0, uuid=B[0], pci_bus_id=B[1]),),
    )


def test_a_host_of_which_nothing_can_be_read(tmp_path: Path) -> None:
    assert read({}, proc=tmp_path / "none") == HostInventory()
    (tmp_path / "net" / "fib_trie").mkdir(parents=True)
    (tmp_path / "driver" / "nvidia" / "gpus" / "odd" / "information").mkdir(parents=True)
    (tmp_path / "sys" / "kernel").mkdir(parents=True)
    (tmp_path / "sys" / "kernel" / "hostname").write_bytes(b"\xff" * 300)
    assert read({}, proc=tmp_path) == HostInventory()


def test_a_host_with_more_than_can_be_told(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    leaves = [f"|-- 10.0.{number}.1\n   /32 host LOCAL\n" for number in range(200)]
    (tmp_path / "net" / "fib_trie").write_text("".join(leaves))
    for number in range(70):
        folder = tmp_path / "driver" / "nvidia" / "gpus" / f"{number}"
        folder.mkdir(parents=True)
        (folder / "information").write_text(report(number, f"GPU-{number:04}", "x" * 300))
    found = read({}, proc=tmp_path)
    assert len(found.addresses) == 64 and len(found.devices) == 64 and found.devices[63].uuid == "GPU-0063"
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=HostInventory) == found


@pytest.mark.parametrize(
    ("slots", "count"), [((0, 1, 2), 3), ((), 0), ((0, 2), 0), ((1,), 0)], ids=["all", "none", "a gap", "not the first"]
)
def test_devices_are_counted_if_their_numbers_leave_no_doubt(slots: tuple[int, ...], count: int) -> None:
    assert HostInventory(devices=tuple(Device(slot=slot, uuid="GPU-1") for slot in slots)).numbered_devices == count


def test_devices_that_are_hidden_are_not_there(tmp_path: Path) -> None:
    file = tmp_path / "driver" / "nvidia" / "gpus" / "0000:17:00.0" / "information"
    file.parent.mkdir(parents=True)
    file.write_text(TWO[0])
    assert len(read({}, proc=tmp_path).devices) == 1
    assert read({"CUDA_VISIBLE_DEVICES": ""}, proc=tmp_path).devices == ()


def test_cpus_that_control_groups_allow() -> None:
    files = {
        "cpu.max": "max 100000",
        "pods/cpu.max": "800000 100000",
        "pods/one/cpu.max": "250000 100000",
        "cpu/batch/cpu.cfs_quota_us": "300000",
        "cpu/batch/cpu.cfs_period_us": "100000",
        "cpu/cpu.cfs_quota_us": "-1",
        "cpu/cpu.cfs_period_us": "100000",
    }
    seen = cpu_quotas("0::/pods/one\n", lambda name: files.get(name, ""))
    assert seen == [8.0, 2.5]
    assert cpu_quotas("5:cpu,cpuacct:/batch\n4:memory:/batch\n", lambda name: files.get(name, "")) == [3.0]
    assert cpu_quotas("0::/\nnonsense\n", lambda _: "many") == [] == cpu_quotas("", lambda _: "")


def test_cpus_of_this_process(tmp_path: Path) -> None:
    allowed = len(os.sched_getaffinity(0))
    assert cpus(proc=tmp_path, cgroups=tmp_path) == allowed
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert cpus(proc=tmp_path, cgroups=tmp_path) == 1
