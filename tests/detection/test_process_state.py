import os
import signal
import subprocess
import time

from understudy.detection.process_state import is_stopped, process_state


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
