import os
import signal
import subprocess
import sys
import time

from understudy.detection.process_state import is_stopped, kernel_view, process_state


def test_the_state_of_a_running_a_stopped_and_an_absent_process() -> None:
    assert process_state(os.getpid()) in ("R", "S")
    with subprocess.Popen(["sleep", "60"]) as child:
        child.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 10
        while not is_stopped(process_state(child.pid)) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert is_stopped(process_state(child.pid))
        child.kill()
    assert process_state(child.pid) == ""


def test_how_long_a_process_has_waited_for_a_processor() -> None:
    """Two that never end share one."""
    first, second = (subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2))
    try:
        for child in (first, second):
            os.sched_setaffinity(child.pid, {min(os.sched_getaffinity(0))})
        deadline = time.monotonic() + 30
        while kernel_view(first.pid).queued < 0.2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert 0.2 <= kernel_view(first.pid).queued < 60.0
    finally:
        for child in (first, second):
            child.kill()
            child.wait()
    assert kernel_view(first.pid).queued == 0.0, "there is no such process"
