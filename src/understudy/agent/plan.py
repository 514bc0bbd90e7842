"""What the agent of one host is asked to run: values only, checked by their maker."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from understudy.agent.logs import LogPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """One owner for each setting of the agent; the flag that sets it is named beside it."""

    command: tuple[str, ...]  # the script and its arguments
    environment: Mapping[str, str]  # what the processes inherit, before our own variables
    world_size: int  # --nnodes x --nproc-per-node
    run_dir: Path  # --run-dir
    logs: LogPlan
    store_command: tuple[str, ...]  # hosts the c10d store; the descriptor of its socket is appended
    fork_server_command: tuple[str, ...] = ()  # forks workers; descriptor and command follow. Empty: --no-fork-server
    fork_founders: bool = False  # the first ranks come from the fork server too
    host: str = ""  # --host-name: this host's name in a job on many hosts
    store_host: str = "127.0.0.1"  # --local-addr: where the c10d store beside this agent listens. Empty: not known yet
    ledger_digest_every: int = 0  # --ledger-digest-every
    ledger_digests: str = "auto"  # --ledger-digests
    check_replicas_every: int = 0  # --check-replicas-every
    peer_snapshot_every: int = 0  # --peer-snapshot-every
    checkpoint_dir: str = ""  # --checkpoint-dir
    checkpoint_every: int = 0  # --checkpoint-every
    grace: float = 5.0  # --shutdown-timeout: seconds from SIGTERM to SIGKILL when the job ends
    device_metrics: str = ""  # --device-metrics: where counters of this host's devices are served
    look_every: float = 0.25  # seconds between two looks at the progress pages
