"""Which devices a process sees under which numbers."""

import os
import re
from pathlib import Path

import pytest

from understudy.devices import nodes, views

UUIDS = "GPU-1,GPU-2,GPU-3"


@pytest.mark.parametrize(
    ("environment", "count", "devices"),
    [
        ({}, 3, ("0", "1", "2")),
        ({}, 0, ()),
        ({"CUDA_VISIBLE_DEVICES": " 4, 2 "}, 8, ("4", "2")),
        ({"CUDA_VISIBLE_DEVICES": UUIDS}, 3, ("GPU-1", "GPU-2", "GPU-3")),
    ],
)
def test_what_is_listed(environment: dict[str, str], count: int, devices: tuple[str, ...]) -> None:
    assert views.listed(environment, count) == devices


@pytest.mark.parametrize(("own", "at", "view"), [(2, 0, "7,6,5"), (2, 1, "5,7,6"), (1, 1, "5,6,7")])
def test_its_own_device_is_where_its_number_looks_and_all_are_still_there(own: int, at: int, view: str) -> None:
    assert views.arranged(("5", "6", "7"), own, at) == view


def test_an_open_file_of_a_driver_is_seen(tmp_path: Path) -> None:
    """With a stand-in: a file of a folder of ours."""
    pattern = re.compile(re.escape(str(tmp_path)) + r"/nvidia(?!ctl$).*")
    control, device = tmp_path / "nvidiactl", tmp_path / "nvidia0"
    with control.open("w"):
        assert nodes.held(pattern) == ()
        with device.open("w"):
            assert nodes.held(pattern) == (str(device),)
        assert nodes.held(pattern) == ()


def test_names_of_the_driver() -> None:
    wanted = {"/dev/nvidia0": True, "/dev/nvidia-uvm": True, "/dev/nvidiactl": False, "/dev/null": False}
    assert {path: nodes.OF_DEVICES.fullmatch(path) is not None for path in wanted} == wanted


def test_this_process_has_none_and_a_folder_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    assert not nodes.computes()
    assert nodes.held(re.compile(".*"), tmp_path / "none") == ()
    (tmp_path / "7").write_text("no link")
    os.symlink("/dev/nvidia3", tmp_path / "8")
    assert nodes.held(nodes.OF_DEVICES, tmp_path) == ("/dev/nvidia3",)
