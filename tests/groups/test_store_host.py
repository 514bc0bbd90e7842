"""The process with the c10d store, as an agent starts it and as clients of torch see it."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import TCPStore

from understudy.groups import store_host

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

_TIMEOUT = timedelta(seconds=30)


@pytest.fixture(params=[(), (store_host.WHOLE,)], ids=["library only", "whole"])
def process(request: pytest.FixtureRequest) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """The port, and what listens there."""
    listening = socket.create_server(("127.0.0.1", 0))
    descriptor = listening.fileno()
    command = [sys.executable, "-m", "understudy.groups.store_host", str(descriptor), *request.param]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(descriptor,)) as started:
        try:
            yield listening.getsockname()[1], started
        finally:
            started.kill()
            listening.close()


def test_clients_use_it_as_any_store(process: tuple[int, "subprocess.Popen[bytes]"]) -> None:
    port, _ = process
    one = TCPStore("127.0.0.1", port, is_master=False, timeout=_TIMEOUT)
    other = TCPStore("127.0.0.1", port, is_master=False, timeout=_TIMEOUT)
    one.set("key", "value")
    assert other.get("key") == b"value"
    assert (one.add("count", 2), other.add("count", 3)) == (2, 5)
    assert one.compare_set("key", "value", "newer") == b"newer"
    assert other.compare_set("key", "value", "newest") == b"newer"
    assert other.check(["key", "count"]) and not other.check(["missing"])
    assert one.multi_get(["key", "count"]) == [b"newer", b"5"]
    assert one.delete_key("key") and not other.check(["key"])


def test_it_ends_when_its_agent_has_gone(process: tuple[int, "subprocess.Popen[bytes]"]) -> None:
    port, started = process
    TCPStore("127.0.0.1", port, is_master=False, timeout=_TIMEOUT).set("key", "value")
    assert started.stdin is not None
    started.stdin.close()
    assert started.wait(30) == 0


def test_nothing_of_torchs_python_is_loaded_for_it() -> None:
    probe = (
        "import sys; from understudy.groups import store_host; store_host.load_library();"
        "print([name for name in ('torch.nn', 'torch.autograd', 'torch._tensor') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=50)
    assert told.stdout.strip() == "[]"


def test_it_dies_of_nothing_that_a_client_does(process: tuple[int, "subprocess.Popen[bytes]"]) -> None:
    port, started = process
    client = "from datetime import timedelta; from torch.distributed import TCPStore; import sys, time;"
    client += f"TCPStore('127.0.0.1', {port}, is_master=False, timeout=timedelta(seconds=30)).set('a', b'b');"
    with subprocess.Popen(
        [sys.executable, "-c", client + "print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    ) as peer:
        assert peer.stdout is not None and peer.stdout.readline()
        os.kill(peer.pid, signal.SIGKILL)
    assert TCPStore("127.0.0.1", port, is_master=False, timeout=_TIMEOUT).get("a") == b"b"
    assert started.poll() is None
