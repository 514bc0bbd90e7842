"""Real etcd servers in a temporary folder, on free ports of this host or one on each of several test hosts."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from understudy.foundation.parenthood import die_with
from understudy_testkit.faults.assertions import NotProven
from understudy_testkit.faults.namespaces import NamespaceHost
from understudy_testkit.ports import free_ports

_READY_TIMEOUT = 60.0
_CLIENT_PORT, _PEER_PORT = 2379, 2380


def why_not() -> str | None:
    """Why there can be no etcd here."""
    if shutil.which("etcd") and shutil.which("etcdctl"):
        return None
    return "there is no etcd here: apt-get install etcd-server etcd-client"


@dataclass(slots=True)
class Server:
    address: str
    client_port: int
    peer_port: int
    host: NamespaceHost | None = None
    certificates: Path | None = None
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def client(self) -> str:
        return f"http{'' if self.certificates is None else 's'}://{self.address}:{self.client_port}"

    def ask(self, *question: str) -> "subprocess.CompletedProcess[bytes]":
        """By etcd's own program."""
        known: tuple[str, ...] = ("--endpoints", self.client, "--command-timeout", "5s")
        if self.certificates is not None:
            files = (("--cacert", "ca.pem"), ("--cert", "cert.pem"), ("--key", "key.pem"))
            own = [part for flag, name in files for part in (flag, str(self.certificates / name))]
            known = (*known, *own, "--insecure-skip-tls-verify")  # the test's certificates are for another name
        command = self.on_its_host("etcdctl", *known, *question)
        return subprocess.run(command, capture_output=True, check=False, timeout=10)

    @property
    def peer(self) -> str:
        return f"http://{self.address}:{self.peer_port}"

    def on_its_host(self, *command: str) -> list[str]:
        return list(command) if self.host is None else self.host.command(*command)

    def leads(self) -> bool:
        """A server tells its own identity in the header of every answer, and the server that it takes for the
        leader."""
        asked = self.ask("--command-timeout", "1s", "endpoint", "status", "-w", "json")
        if asked.returncode != 0:
            return False
        status = json.loads(asked.stdout)[0]["Status"]
        return bool(status.get("leader")) and status["leader"] == status["header"]["member_id"]


@dataclass(slots=True)
class Servers:
    """A cluster of one or three."""

    folder: Path
    servers: dict[str, Server] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return "etcd://" + ",".join(f"{server.address}:{server.client_port}" for server in self.servers.values())

    def start(self, count: int, certificates: Path | None = None) -> None:
        ports = iter(free_ports(2 * count))
        self.servers = {
            f"e{number}": Server("127.0.0.1", next(ports), next(ports), certificates=certificates)
            for number in range(count)
        }
        for name in self.servers:
            self._start_one(name)

    def start_on(self, hosts: Sequence[NamespaceHost]) -> None:
        self.servers = {host.name: Server(host.address, _CLIENT_PORT, _PEER_PORT, host) for host in hosts}
        for name in self.servers:
            self._start_one(name)

    def _start_one(self, name: str) -> None:
        server = self.servers[name]
        cluster = ",".join(f"{other}={at.peer}" for other, at in self.servers.items())
        command = [
            *("etcd", "--name", name, "--data-dir", str(self.folder / name), "--logger", "zap"),
            *("--listen-client-urls", server.client, "--advertise-client-urls", server.client),
            *("--listen-peer-urls", server.peer, "--initial-advertise-peer-urls", server.peer),
            *("--initial-cluster", cluster, "--initial-cluster-state", "new"),
        ]
        if (own := server.certificates) is not None:
            command += ["--cert-file", str(own / "cert.pem"), "--key-file", str(own / "key.pem")]
            command += ["--client-cert-auth", "--trusted-ca-file", str(own / "ca.pem")]
        with open(self.folder / f"{name}.txt", "ab") as output:
            server.process = subprocess.Popen(
                server.on_its_host(*command),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 (nothing may outlive its caller)
            )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT
        while self.leader() is None:
            if time.monotonic() > deadline:
                texts = [path.read_text(errors="replace")[-500:] for path in self.folder.glob("*.txt")]
                raise NotProven("etcd was not ready in time\n" + "\n".join(texts))
            time.sleep(0.05)

    def leader(self) -> str | None:
        """The name of the server that leads, if one can be found."""
        for name, server in self.servers.items():
            if server.process is not None and server.process.poll() is None and server.leads():
                return name
        return None

    def signal(self, name: str, number: signal.Signals) -> None:
        process = self.servers[name].process
        assert process is not None
        process.send_signal(number)
        if number is signal.SIGKILL:
            process.wait(10)
        elif number is signal.SIGSTOP:
            os.waitpid(process.pid, os.WUNTRACED)  # until then it may answer once more

    def close(self) -> None:
        for server in self.servers.values():
            if server.process is not None and server.process.poll() is None:
                server.process.kill()
                server.process.wait(10)


@contextlib.contextmanager
def running(folder: Path, count: int = 1, certificates: Path | None = None) -> Iterator[Servers]:
    """On free ports of 127.0.0.1. `certificates`: of the servers, which then want some of their clients."""
    servers = Servers(folder)
    try:
        servers.start(count, certificates)
        servers.wait_until_ready()
        yield servers
    finally:
        servers.close()


@contextlib.contextmanager
def running_on(folder: Path, hosts: Sequence[NamespaceHost]) -> Iterator[Servers]:
    """One on each of these hosts."""
    folder.mkdir(parents=True, exist_ok=True)
    servers = Servers(folder)
    try:
        servers.start_on(hosts)
        servers.wait_until_ready()
        yield servers
    finally:
        servers.close()
