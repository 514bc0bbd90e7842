"""What runs beside the ranks of a job under Ray Train: an agent in each of Ray's workers, and the coordinator.

Nothing here needs torch, so that a worker of Ray's stays small. A coordinator that is started here listens on the
loopback interface only, as any without certificates; its token is a file of this user's, for processes of this machine.
"""

import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from understudy.errors import UsageError
from understudy.files.private import make_private_folder, write_private
from understudy.foundation.parenthood import die_with

_REPLACEMENT = "UNDERSTUDY_RAY_REPLACEMENT"  # in the environment of a worker that Ray has started for a lost one
_LOOPBACK = "127.0.0.1"
_READY_WITHIN, _ATTENDS_WITHIN, _ENDS_WITHIN = 60.0, 15.0, 30.0  # seconds


def mark_as_replacement() -> None:
    os.environ[_REPLACEMENT] = "1"


@dataclass(frozen=True)
class Host:
    """Called in a worker of Ray's. `here`: the coordinator's address, if that is on this machine. `function`: the
    training function, pickled."""

    flags: tuple[str, ...]
    spare_hosts: int
    here: str
    function: bytes

    def __call__(self) -> int | None:
        """The exit code of the job, or None where that was over when this worker came."""
        from ray import train

        rank, workers = train.get_context().get_world_rank(), train.get_context().get_world_size()
        flags = [*self.flags, *self._place(rank, workers)]
        with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
            (file := Path(folder, "function")).write_bytes(self.function)
            agent = _start(("run", *flags, "-m", "understudy.integrations.ray", str(file)))
            with suppress(subprocess.TimeoutExpired):
                agent.wait(_ATTENDS_WITHIN)
            if self.here and agent.poll() is None and not _answers(self.here):
                agent.terminate()  # it would look for a coordinator for ever
                agent.wait()
                return None
            code = agent.wait()
        if code < 0:
            raise RuntimeError(f"the agent of worker {rank} was ended by signal {-code}")
        return code

    def _place(self, rank: int, workers: int) -> Iterator[str]:
        if self.here:  # workers of one machine are different hosts
            yield from ("--host-name", f"worker-{rank}")
        if rank >= workers - self.spare_hosts or _REPLACEMENT in os.environ:
            yield "--spare-host"
        else:
            yield from ("--node-rank", str(rank))


@dataclass(frozen=True)
class CoordinatorHere:
    """`flags`: with which agents find it."""

    address: str
    flags: tuple[str, ...]
    process: "subprocess.Popen[bytes]"

    def wait(self) -> int:
        """The exit code of the job, which is over."""
        return self.process.wait(_ENDS_WITHIN)


@contextmanager
def coordinator_here(run_dir: Path) -> Iterator[CoordinatorHere]:
    with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
        token, said = Path(folder, "token"), Path(folder, "said")
        write_private(token, secrets.token_hex(16).encode())
        make_private_folder(run_dir)
        given = ("--token-file", str(token), "--run-dir", str(run_dir))
        with open(said, "wb") as output:
            process = _start(("coordinator", "--listen", f"{_LOOPBACK}:0", *given), output)
        try:
            address = _address(process, said)
            flags = ("--coordinator", address, "--token-file", str(token), "--local-addr", _LOOPBACK)
            yield CoordinatorHere(address, flags, process)
        finally:
            process.terminate()
            process.wait(_ENDS_WITHIN)


def _start(arguments: Sequence[str], output: IO[bytes] | None = None) -> "subprocess.Popen[bytes]":
    """It does not outlive this process."""
    return subprocess.Popen(
        (sys.executable, "-m", "understudy", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
        preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 (it takes no lock that another thread could hold)
    )


def _address(process: "subprocess.Popen[bytes]", said: Path) -> str:
    deadline = time.monotonic() + _READY_WITHIN
    while not (found := re.search(r"listening on (\S+) ", text := said.read_text())):
        if process.poll() is not None or time.monotonic() > deadline:
            raise UsageError(f"`understudy coordinator` did not start: {text}")
        time.sleep(0.05)
    return found[1]


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=5.0):
        return True
    return False
