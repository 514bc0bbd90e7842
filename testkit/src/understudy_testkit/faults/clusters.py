"""A job on several test hosts: coordinators, agents and their training script, started, watched and ended."""

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from understudy.files.private import write_private
from understudy.ledger.reading import Run, read_run
from understudy.ledger.records import DecisionRecord, RecoveryRecord, StepRecord
from understudy.wire.issuing import make_set
from understudy_testkit.faults.assertions import TRAIN_SCRIPT, NotProven, Setup, fault_flags, require_identical
from understudy_testkit.faults.catalogue import Fault
from understudy_testkit.faults.injector import fired
from understudy_testkit.faults.namespaces import NamespaceHost
from understudy_testkit.faults.releases import spelled
from understudy_testkit.faults.watching import decided_so_far, page_of

PORT, HTTP_PORT = 29400, 29401
_READY_TIMEOUT = 180.0  # seconds; for a broken run, on a machine that may be busy
_TOLD_WITHIN = 20.0  # seconds until a new holder of a rank has told of its first step
_ASK = """
import ssl, sys, urllib.request
folder, port = sys.argv[1:]
context = ssl.create_default_context(cafile=f"{folder}/ca.pem")
context.check_hostname = False
context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
print(urllib.request.urlopen(f"https://127.0.0.1:{port}/status", context=context).read().decode())
"""


@dataclass(slots=True)
class Started:
    """One process of the cluster, with its output in a file."""

    name: str
    process: "subprocess.Popen[bytes]"
    output: Path

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


@dataclass(slots=True)
class Cluster:
    """`hosts`: with ranks, in order. `spare_hosts`: only spares. Coordinators run on hosts of their own."""

    folder: Path
    setup: Setup
    hosts: list[NamespaceHost]
    spare_hosts: list[NamespaceHost]
    coordinators: list[NamespaceHost]
    store: str = "memory"
    certificates: Path | None = None
    flags: tuple[str, ...] = ()
    tokens: Path | None = None  # of the API
    faults: tuple[Fault, ...] = ()
    installations: dict[str, Path] = field(default_factory=dict)  # by host: what runs there, if not this version
    started: dict[str, Started] = field(default_factory=dict)
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def ranks_per_host(self) -> int:
        return self.setup.ranks // len(self.hosts)

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    @property
    def addresses(self) -> str:
        return ",".join(f"{host.address}:{PORT}" for host in self.coordinators)

    # -- starting -----------------------------------------------------------------------------------------------------

    def start_coordinator(self, host: NamespaceHost) -> Started:
        command = [
            *(sys.executable, "-m", "understudy", "coordinator", "--listen", f"{host.address}:{PORT}"),
            *("--http", f"127.0.0.1:{HTTP_PORT}", *(("--http-tokens", str(self.tokens)) if self.tokens else ())),
            *("--store", self.store, "--run-dir", str(self.run_dir), "--token-file", str(self._token_file())),
            *self._certs(host),
        ]
        return self._start(f"coordinator-{host.name}", host, command)

    def start_agent(self, host: NamespaceHost, number: int) -> Started:
        spare = host in self.spare_hosts
        command = [
            *(sys.executable, "-m", "understudy", "run", "--no-progress", "--run-dir", str(self.run_dir)),
            *("--coordinator", self.addresses, "--nnodes", str(len(self.hosts)), "--host-name", host.name),
            *("--nproc-per-node", str(self.ranks_per_host), "--local-addr", host.address),
            *("--token-file", str(self._token_file()), *self._certs(host), "--spares", str(self.setup.spares)),
            *(("--spare-host",) if spare else ("--node-rank", str(number))),
            *(*self.setup.flags, *self.flags, *TRAIN_SCRIPT, "--mode", self.setup.mode),
            *("--steps", str(self.setup.steps), *self.setup.script_args, *fault_flags(self.folder, self.faults)),
        ]
        return self._start(host.name, host, command)

    def _start(self, name: str, host: NamespaceHost, command: list[str]) -> Started:
        self.folder.mkdir(parents=True, exist_ok=True)
        output = self.folder / f"{name}.{time.monotonic():.3f}.txt"  # it may be started again
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0"}
        if host.name in self.installations:
            environment["PYTHONPATH"] = str(self.installations[host.name])
            command = spelled(command, self.installations[host.name])
        with open(output, "wb") as file:
            process = subprocess.Popen(
                host.command(*command),
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        started = self.started[name] = Started(name, process, output)
        return started

    def _token_file(self) -> Path:
        path = self.folder / "token"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_private(path, self.token.encode())
        return path

    def _certs(self, host: NamespaceHost) -> tuple[str, ...]:
        return () if self.certificates is None else ("--certs", str(self.certificates / host.name))

    # -- watching -----------------------------------------------------------------------------------------------------

    def wait_until(self, true: Callable[[], bool], what: str, seconds: float = _READY_TIMEOUT) -> float:
        """Returns when it became true, by the monotonic clock that all processes here share."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            over = all(started.process.poll() is not None for started in self.started.values())  # looked at first
            if true():
                return time.monotonic()
            if over and self.started:
                raise NotProven(f"every process has ended, and this did not come: {what}\n{self.tails()}")
            time.sleep(0.01)
        raise NotProven(f"waited {seconds:g} s for: {what}\n{self.tails()}")

    def struck(self, name: str) -> bool:
        return (self.folder / "proofs" / f"{name}.0.json").exists()

    def wait_until_struck(self, name: str, seconds: float = _READY_TIMEOUT) -> float:
        """When the fault struck."""
        self.wait_until(lambda: self.struck(name), f"the fault {name}", seconds)
        return next(float(proof["at"]) for proof in fired(self.folder / "proofs") if proof["fault"] == name)

    def leader(self) -> Started | None:
        """The coordinator whose newest word is that it leads, and that is alive."""
        leading = []
        for name, started in self.started.items():
            if not name.startswith("coordinator") or started.process.poll() is not None:
                continue
            said = re.findall(r"(leading, term \d+|not leading any more)", started.text())
            if said and said[-1][0] == "l":
                leading.append((int(said[-1].rpartition(" ")[2]), started))
        return max(leading, key=lambda found: found[0])[1] if leading else None

    def status(self) -> dict[str, Any]:
        """As the leader tells it by HTTP. Empty when no coordinator leads."""
        leader = self.leader()
        host = next((host for host in self.coordinators if leader and leader.name == f"coordinator-{host.name}"), None)
        if host is None:
            return {}
        command = host.command(sys.executable, "-c", _ASK, *self._certs(host)[1:], str(HTTP_PORT))
        asked = subprocess.run(command, capture_output=True, check=False, timeout=60)
        found: dict[str, Any] = json.loads(asked.stdout) if asked.returncode == 0 else {}
        return found

    def steps_done(self) -> int:
        """The newest step that any rank has committed."""
        newest = -1
        for file in self.run_dir.glob("ledger/steps-*.jsonl"):
            last = file.read_bytes().rsplit(b"\n", 2)[:-1]  # what follows the last end of a line is not whole
            with contextlib.suppress(msgspec.DecodeError):  # of a gap, or nothing
                newest = max(newest, msgspec.json.decode(last[-1] if last else b"", type=StepRecord).step)
        return newest

    def kill_rank(self, rank: int) -> None:
        """SIGKILL to the process that holds it, wherever that is. A member that has just taken it over may not have
        told of a step yet: then its predecessor is named, which is gone."""
        deadline = time.monotonic() + _TOLD_WITHIN
        while True:
            records = [record for record in self._steps() if record.rank == rank]
            member = max(records, key=lambda record: (record.generation, record.step)).member
            if (pid := self._process_of(member)) is not None:
                os.kill(pid, signal.SIGKILL)
                return
            if time.monotonic() > deadline:
                raise NotProven(f"rank {rank} (member {member}) is on no host")
            time.sleep(0.05)

    def _process_of(self, member: str) -> int | None:
        agents = {started.process.pid for started in self.started.values()}  # with one worker it has that page, too
        for host in (*self.hosts, *self.spare_hosts):
            for pid in set(host.processes()) - agents:
                if Path(page_of(pid) or "").stem == member:
                    return pid
        return None

    def _steps(self) -> list[StepRecord]:
        files = self.run_dir.glob("ledger/steps-*.jsonl")
        lines = [line for file in files for line in file.read_bytes().split(b"\n")[:-1]]
        return [msgspec.json.decode(line, type=StepRecord) for line in lines]

    def wait(self, seconds: float) -> int:
        """Until every agent that was not killed has ended; the exit code of the first host."""
        deadline = time.monotonic() + seconds
        codes = {}
        for name, started in self.started.items():
            try:
                codes[name] = started.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise NotProven(f"{name} did not end within {seconds:g} s\n{self.tails()}") from None
        return next(code for name, code in codes.items() if not name.startswith("coordinator"))

    def tails(self) -> str:
        return "\n".join(f"--- {name}\n{started.text()[-1500:]}" for name, started in self.started.items())

    def recoveries(self) -> list[RecoveryRecord]:
        return [record for record in decided_so_far(self.run_dir) if isinstance(record, RecoveryRecord)]

    def decisions(self) -> list[DecisionRecord]:
        return [record for record in decided_so_far(self.run_dir) if isinstance(record, DecisionRecord)]

    def reasons(self) -> list[str]:
        return [record.reason for record in self.decisions()]

    @property
    def run(self) -> Run:
        return read_run(self.run_dir)

    def require_identical_end(self, reference: Run, what: str, seconds: float) -> None:
        if self.wait(seconds) != 0:
            raise NotProven(f"{what} did not succeed\n{self.tails()}")
        require_identical(reference, self.run, what)

    def close(self) -> None:
        for started in self.started.values():
            started.kill()


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """All coordinators and agents started, with certificates of their own: they are hosts to each other."""
    if cluster.certificates is None:
        parties = [host.name for host in (*cluster.coordinators, *cluster.hosts, *cluster.spare_hosts)]
        cluster.certificates = cluster.folder / "certificates"
        deciding = [host.name for host in cluster.coordinators]
        make_set(cluster.certificates, parties, coordinators=deciding, api_clients=deciding)
    try:
        for host in cluster.coordinators:
            cluster.start_coordinator(host)
        for number, host in enumerate([*cluster.hosts, *cluster.spare_hosts]):
            cluster.start_agent(host, number)
        yield cluster
    except BaseException as error:  # what fails once in a hundred runs, or is broken off, should not be seen twice
        error.add_note("What was decided:\n" + "\n".join(cluster.reasons()) + "\n" + cluster.tails())
        raise
    finally:
        cluster.close()
