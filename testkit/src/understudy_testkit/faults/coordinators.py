"""Real `understudy coordinator` processes on free ports of this host, for claims and tests."""

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from understudy.files.private import write_private
from understudy.foundation.parenthood import die_with
from understudy_testkit.faults.assertions import NotProven


@dataclass
class CoordinatorProcess:
    """`output`: the file with what it says."""

    process: "subprocess.Popen[bytes]"
    output: Path

    def find(self, pattern: str, seconds: float = 60.0) -> str:
        """Waits until it has said so. Returns what the pattern caught."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = re.search(pattern, self.output.read_text())
            if found is not None:
                return found[1]
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise NotProven(f"the coordinator never said {pattern!r}:\n{self.output.read_text()[-2000:]}")

    @property
    def address(self) -> str:
        return self.find(r"listening on (\S+) ")

    @property
    def http_port(self) -> int:
        return int(self.find(r"status on port (\d+)", 60.0))

    def status(self, page: str = "/status") -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{page}", timeout=10.0) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def memory(self) -> int:
        """Bytes that it has in memory."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    def peak_memory(self) -> int:
        """The most bytes that it has had in memory at any time."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def cpu(self) -> float:
        """Seconds of processor time that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def running(folder: Path, name: str, token: str, *flags: str) -> Iterator[CoordinatorProcess]:
    """On free ports of 127.0.0.1, unless the flags say otherwise."""
    token_file, output = folder / "token", folder / f"{name}.txt"
    write_private(token_file, token.encode())
    command = [
        *(sys.executable, "-m", "understudy", "coordinator", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
        *("--token-file", str(token_file), "--run-dir", str(folder / "run"), *flags),
    ]
    with open(output, "wb") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 (nothing may outlive its caller)
        )
    try:
        yield CoordinatorProcess(process, output)
    finally:
        process.kill()
        process.wait(10)
