"""A real Slurm in a temporary folder: munged, slurmctld and one slurmd on each of several test hosts.

A node is a network namespace with an address and a host name of its own, so that everything that runs on a node can be
killed at once, as when its power fails, or be cut off. At the end everything in the namespaces is killed, munged too,
and the folder is removed. Only jobs of tests run here, as root.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

from understudy.files.private import write_private
from understudy.foundation.parenthood import die_with
from understudy_testkit.faults import namespaces
from understudy_testkit.faults.assertions import NotProven
from understudy_testkit.faults.namespaces import NamespaceHost
from understudy_testkit.faults.slurm.answers import (
    JOBS_FORMAT,
    NODES_FORMAT,
    JobSeen,
    NodeSeen,
    fields_in,
    jobs_in,
    nodes_in,
)
from understudy_testkit.faults.slurm.configuration import CGROUP_CONF, GPU_FILES, gres_conf, slurm_conf

CONTROLLER = "controller"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "sinfo", "scancel")
_READY_TIMEOUT, _COMMAND_TIMEOUT = 60.0, 60.0  # seconds; for a machine that may be busy
_ENDED_TIMEOUT = 10.0
_KEY_BYTES = 128
_SYSTEM_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"  # daemons are not in everybody's path
_TAIL = 1500
_NAMED = (
    'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'  # `ip netns exec` has made mounts private
)
_FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE")


def why_not() -> str | None:
    """Why there can be no Slurm here."""
    if any(shutil.which(program, path=_SYSTEM_PATH) is None for program in PROGRAMS):
        return "there is no Slurm here: apt-get install slurm-wlm munge"
    return namespaces.why_not()


class SlurmCluster:
    """`with SlurmCluster(nodes=4) as cluster:` nodes n1 to n4, idle. A method raises `NotProven` when Slurm refuses."""

    def __init__(self, nodes: int) -> None:
        self.names = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.hosts: dict[str, NamespaceHost] = {}
        self.folder = Path()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> "SlurmCluster":
        try:
            self._start()
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with contextlib.suppress(Exception):  # the error that is under way is the one to be seen
                error.add_note(self.tails())
        self._opened.close()

    # -- daemons ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.folder = Path(self._opened.enter_context(tempfile.TemporaryDirectory(prefix="understudy-slurm-")))
        self._opened.callback(self._reap)
        self._start_munged()
        self.hosts = self._opened.enter_context(namespaces.hosts((CONTROLLER, *self.names)))
        addresses = {name: self.hosts[name].address for name in self.names}
        (self.folder / "state").mkdir()
        known = "".join(f"{host.address} {name}\n" for name, host in self.hosts.items())
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
        (self.folder / "cgroup.conf").write_text(CGROUP_CONF)  # found beside slurm.conf
        (self.folder / "gres.conf").write_text(gres_conf(self.folder))
        for name in GPU_FILES:
            (self.folder / name).touch()
        controller = (CONTROLLER, self.hosts[CONTROLLER].address)
        self.configuration.write_text(slurm_conf(self.folder, self.folder / "munge.socket", controller, addresses))
        self._daemon("slurmctld", self._on(CONTROLLER, "slurmctld", "-D", "-f", str(self.configuration)))
        for name in self.names:
            self.start_node(name)
        self.wait_until(
            lambda: all(node.state == "idle" and node.answers for node in self.nodes().values()),
            "every node idle",
            _READY_TIMEOUT,
        )

    def _start_munged(self) -> None:
        key, at = self.folder / "munge.key", self.folder / "munge"
        write_private(key, os.urandom(_KEY_BYTES))
        # --force: the folder's parent may be writable by all
        command = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={at}.socket"]
        command += [f"--pid-file={at}.pid", f"--seed-file={at}.seed", f"--log-file={at}.log"]
        self._daemon("munged", command)
        self.wait_until((self.folder / "munge.socket").exists, "munged", _READY_TIMEOUT)

    def _daemon(self, name: str, command: list[str]) -> None:
        with open(self.folder / f"{name}.txt", "ab") as output:
            self._daemons[name] = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment(),
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 (nothing may outlive its caller)
            )

    def _on(self, host: str, *command: str) -> list[str]:
        """There, under a host name that all know: by it slurmctld finds the srun that must hear of a lost node."""
        named = ("unshare", "--uts", "sh", "-c", _NAMED, host, str(self.folder / "hosts"), *command)
        return self.hosts[host].command(*named)

    def _reap(self) -> None:
        for process in self._daemons.values():
            process.kill()
            process.wait(_ENDED_TIMEOUT)

    @property
    def configuration(self) -> Path:
        return self.folder / "slurm.conf"  # an absolute path: slurmd wants that

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Of daemons and commands; sbatch and srun give theirs to the job. Without that of a Slurm around the test."""
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SRUN"))}
        return {**outer, "PATH": _SYSTEM_PATH, "SLURM_CONF": str(self.configuration), **(more or {})}

    # -- what happens to nodes ----------------------------------------------------------------------------------------

    def start_node(self, name: str) -> None:
        """Its slurmd: at first, or again after the node was killed."""
        self.hosts[name].heal()
        self._daemon(name, self._on(name, "slurmd", "-D", "-N", name, "-f", str(self.configuration)))

    def kill_node(self, name: str) -> int:
        """As when the power fails: the link first, and then slurmd, stepds, tasks and scripts. Returns how many that
        were. With the link up, the shepherd of an srun that was killed a moment before it would end the step."""
        self.hosts[name].cut()
        killed = self.hosts[name].kill()
        self._daemons[name].wait(_ENDED_TIMEOUT)
        return killed

    def drain(self, name: str, reason: str) -> None:
        self.run("scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}")

    def resume(self, name: str) -> None:
        self.run("scontrol", "update", f"NodeName={name}", "State=RESUME")

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def sbatch(
        self,
        script: str | Path,
        *flags: str,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> str:
        """Submits a file, or a text. Returns the id. The job runs in `folder`, and its output goes there."""
        file = script
        if isinstance(script, str):
            file = self.folder / f"script-{time.monotonic_ns()}"
            file.write_text(script)
        command = ["sbatch", "--parsable", f"--chdir={folder or self.folder}", *flags, str(file), *arguments]
        return self.run(*command, environment=environment).strip().partition(";")[0]

    def srun(self, *arguments: str, seconds: float = _COMMAND_TIMEOUT) -> str:
        """Runs until the step has ended. Returns what its tasks print."""
        return self.run("srun", *arguments, seconds=seconds)

    def cancel(self, job: str) -> None:
        self.run("scancel", job)

    def leave_job_only(self, job: str, nodes: Sequence[str]) -> None:
        """What is not in `nodes` is given back while the job runs on."""
        self.run("scontrol", "update", f"JobId={job}", f"NodeList={','.join(nodes)}")

    # -- what is seen -------------------------------------------------------------------------------------------------

    def jobs(self) -> dict[str, JobSeen]:
        """Also those that have ended in the last minutes."""
        return jobs_in(self.run("squeue", "--noheader", "--states=all", f"--format={JOBS_FORMAT}"))

    def nodes(self) -> dict[str, NodeSeen]:
        return nodes_in(self.run("sinfo", "--noheader", "--Node", f"--format={NODES_FORMAT}"))

    def job_state(self, job: str) -> str:
        return self.job_fields(job)["JobState"]

    def job_fields(self, job: str) -> dict[str, str]:
        return fields_in(self.run("scontrol", "--oneliner", "show", "job", job))

    def nodes_of(self, job: str) -> list[str]:
        """In the order of Slurm: the first one is the batch host."""
        nodes = self.job_fields(job)["NodeList"]
        return [] if nodes == "(null)" else self.run("scontrol", "show", "hostnames", nodes).split()

    def allocated(self) -> list[str]:
        """Nodes that any job holds, also one that is being ended."""
        held = [job.nodes for job in self.jobs().values() if job.nodes and job.state not in _FINAL]
        return self.run("scontrol", "show", "hostnames", ",".join(held)).split() if held else []

    def wait_until(self, true: Callable[[], bool], what: str, seconds: float) -> float:
        """Returns how long it took."""
        began = time.monotonic()
        while not true():
            if time.monotonic() - began > seconds:
                raise NotProven(f"waited {seconds:g} s for: {what}\n{self.tails()}")
            time.sleep(0.1)
        return time.monotonic() - began

    def wait_for_state(self, job: str, *states: str, seconds: float) -> str:
        self.wait_until(lambda: self.job_state(job) in states, f"job {job} {' or '.join(states)}", seconds)
        return self.job_state(job)

    def tails(self) -> str:
        """What the daemons said last."""
        files = sorted(self.folder.glob("*.txt"))
        return "\n".join(f"--- {file.stem}\n{file.read_text(errors='replace')[-_TAIL:]}" for file in files)

    def run(
        self, *command: str, environment: Mapping[str, str] | None = None, seconds: float = _COMMAND_TIMEOUT
    ) -> str:
        """One of Slurm's commands, on the controller's host. While slurmctld starts, it asks again by itself."""
        done = subprocess.run(
            self._on(CONTROLLER, *command),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=self.environment(environment),
            check=False,
            timeout=seconds,
        )
        if done.returncode != 0:
            raise NotProven(f"{' '.join(command)}: ended with {done.returncode}: {done.stderr.strip()}\n{self.tails()}")
        return done.stdout
