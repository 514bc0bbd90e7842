"""What a process says when it dies of itself."""

import subprocess
import sys

import pytest

_CRASH = """
import ctypes, sys
from understudy.training.script_errors import show_crashes
{before}
show_crashes()
def where_it_happens() -> None:
    ctypes.string_at(0)
where_it_happens()
"""


def crash(before: str = "") -> str:
    command = [sys.executable, "-c", _CRASH.format(before=before)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == -11
    return ended.stderr


@pytest.mark.timeout(120)
def test_a_crash_says_where_its_threads_were() -> None:
    said = crash()
    assert "Segmentation fault" in said and "in where_it_happens" in said


@pytest.mark.timeout(120)
def test_without_a_stderr_it_dies_as_before() -> None:
    assert crash("sys.stderr.close(); sys.stderr = None") == ""
