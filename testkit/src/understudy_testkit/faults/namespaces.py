"""Hosts for tests: network namespaces on one bridge, each with an address of its own and a link that can be cut.

Needs root and iproute2. Everything is named after this process and removed at the end, with whatever still runs inside.
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_NETWORK = "10.77.0"
_numbers = itertools.count()  # a process may have several networks at once
_EMPTY_TIMEOUT = 10.0  # seconds for killed processes to be gone


def why_not() -> str | None:
    """Why there can be no such hosts here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the program ip is missing (package iproute2)"
    return None


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class NamespaceHost:
    """`bridge`: the namespace with the other ends of all links."""

    name: str
    namespace: str
    bridge: str
    link: str
    address: str

    def command(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *command]

    def cut(self) -> None:
        """The link is down. Processes on the host live on and do not know."""
        _ip("-n", self.bridge, "link", "set", self.link, "down")

    def heal(self) -> None:
        _ip("-n", self.bridge, "link", "set", self.link, "up")

    def disturb(self, delay: float = 0.0, loss: float = 0.0) -> None:
        """What goes to this host comes `delay` seconds late, and a share of it (`loss`) not at all. Needs netem."""
        _ip(
            *("netns", "exec", self.bridge, "tc", "qdisc", "replace", "dev", self.link, "root", "netem"),
            *("delay", f"{delay * 1000:g}ms", "loss", f"{loss * 100:g}%"),
        )

    def processes(self) -> list[int]:
        return [int(pid) for pid in _ip("netns", "pids", self.namespace).split()]

    def kill(self) -> int:
        """All processes at once, as when the power fails. Returns how many there were."""
        killed = 0
        deadline = time.monotonic() + _EMPTY_TIMEOUT
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes on {self.name} do not end: {pids}")
            time.sleep(0.01)
        return killed


@contextlib.contextmanager
def hosts(names: Sequence[str]) -> Iterator[dict[str, NamespaceHost]]:
    """By name, with addresses 10.77.0.1 and on."""
    mark = f"us{os.getpid()}n{next(_numbers)}"
    bridge = f"{mark}-bridge"
    made: dict[str, NamespaceHost] = {}
    try:
        _ip("netns", "add", bridge)
        _ip("-n", bridge, "link", "add", "br0", "type", "bridge", "forward_delay", "0", "stp_state", "0")
        _ip("-n", bridge, "link", "set", "br0", "up")
        for number, name in enumerate(names, 1):
            made[name] = _add_host(name, number, mark, bridge)
        yield made
    finally:
        for host in made.values():
            with contextlib.suppress(RuntimeError):
                host.kill()
        for namespace in (bridge, *(host.namespace for host in made.values())):
            with contextlib.suppress(RuntimeError):
                _ip("netns", "del", namespace)


def _add_host(name: str, number: int, mark: str, bridge: str) -> NamespaceHost:
    host = NamespaceHost(name, f"{mark}-{name}", bridge, f"v{number}", f"{_NETWORK}.{number}")
    _ip("netns", "add", host.namespace)
    _ip(*f"link add {host.link} netns {bridge} type veth peer name eth0 netns {host.namespace}".split())
    _ip("-n", bridge, "link", "set", host.link, "master", "br0")
    _ip("-n", bridge, "link", "set", host.link, "up")
    _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
    for link in ("eth0", "lo"):
        _ip("-n", host.namespace, "link", "set", link, "up")
    return host
