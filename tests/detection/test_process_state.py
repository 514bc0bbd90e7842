import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

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


def test_the_kernel_says_how_long_a_process_has_waited_for_a_processor() -> None:
    one = min(os.sched_getaffinity(0))
    with ExitStack() as ending:
        spinning = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(2)]
        for process in spinning:
            ending.enter_context(process)
            ending.callback(process.kill)
            os.sched_setaffinity(process.pid, {one})
        deadline = time.monotonic() + 30
        while min(kernel_view(process.pid).delayed for process in spinning) < 0.05 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert min(kernel_view(process.pid).delayed for process in spinning) >= 0.05
    assert kernel_view(spinning[0].pid).delayed == 0.0
