"""The only reader of the environment.

The agent writes these variables for the processes it starts, and a worker reads them once, in `understudy.join()`.
Nothing else in the program looks at the environment.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from understudy.errors import SettingsError
from understudy.foundation.ids import MemberId

_PREFIX = "UNDERSTUDY_"

JOB_TOKEN, API_TOKEN = f"{_PREFIX}JOB_TOKEN", f"{_PREFIX}API_TOKEN"
"""Where commands look for the token of a job, and of its API, when no file is named."""

SECRETS = (JOB_TOKEN, API_TOKEN, f"{_PREFIX}TOKEN")
"""Variables that are for the process that was started with them, and never for one that it starts. The last one is a
worker's: it is inherited where `understudy run` is itself started by a worker."""

FORMER_NAMES: Mapping[str, str] = {
    f"{_PREFIX}DIGEST_EVERY": f"{_PREFIX}LEDGER_DIGEST_EVERY",
    f"{_PREFIX}COMPARE_EVERY": f"{_PREFIX}CHECK_REPLICAS_EVERY",
    f"{_PREFIX}SAVE_EVERY": f"{_PREFIX}PEER_SNAPSHOT_EVERY",
}
"""Of variables. They are read for one release: an agent of the previous one starts its spares from the files that are
installed now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What the agent tells a worker before it starts."""

    socket: str  # path of the agent's Unix socket
    member: MemberId
    token: str  # proves that the worker is the process that the agent started
    run_dir: str  # where the ledger of this run is kept
    progress_file: str  # a small mapped file in which the worker shows its progress
    store_host: str  # the c10d store, a process beside the agent
    store_port: int
    ledger_digest_every: int = 0  # record digests of the state every so many steps; 0 is never
    ledger_digests: str = "auto"  # how they are taken (`ledger.digest_kinds`); auto: as suits the device
    check_replicas_every: int = 0  # twins compare their states every so many steps; 0 is never
    checkpoint_dir: str = ""  # where durable checkpoints are; empty: nowhere
    checkpoint_every: int = 0  # steps between two of them; 0: none is written
    peer_snapshot_every: int = 0  # ranks without a twin are snapshot into peer memory every so many steps; 0 is never
    host: str = ""  # the name of this host, where the job has several
    devices: tuple[str, ...] = ()  # of this host, for a process that is told later which of them it has

    def to_environment(self) -> dict[str, str]:
        return {
            f"{_PREFIX}SOCKET": self.socket,
            f"{_PREFIX}MEMBER": self.member,
            f"{_PREFIX}TOKEN": self.token,
            f"{_PREFIX}RUN_DIR": self.run_dir,
            f"{_PREFIX}PROGRESS_FILE": self.progress_file,
            f"{_PREFIX}STORE_HOST": self.store_host,
            f"{_PREFIX}STORE_PORT": str(self.store_port),
            f"{_PREFIX}LEDGER_DIGEST_EVERY": str(self.ledger_digest_every),
            f"{_PREFIX}LEDGER_DIGESTS": self.ledger_digests,
            f"{_PREFIX}CHECK_REPLICAS_EVERY": str(self.check_replicas_every),
            f"{_PREFIX}PEER_SNAPSHOT_EVERY": str(self.peer_snapshot_every),
            f"{_PREFIX}CHECKPOINT_DIR": self.checkpoint_dir,
            f"{_PREFIX}CHECKPOINT_EVERY": str(self.checkpoint_every),
            f"{_PREFIX}HOST": self.host,
        } | ({f"{_PREFIX}DEVICES": ",".join(self.devices)} if self.devices else {})

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> "WorkerSettings | None":
        """None when this process was not started by `understudy run` (plain python or torchrun)."""
        values = _todays_names(os.environ if environment is None else environment)
        if f"{_PREFIX}SOCKET" not in values:
            return None

        def need(name: str) -> str:
            try:
                return values[f"{_PREFIX}{name}"]
            except KeyError:
                raise SettingsError(
                    f"{_PREFIX}SOCKET is set but {_PREFIX}{name} is not: start the script with `understudy run`, "
                    f"or unset {_PREFIX}SOCKET"
                ) from None

        return WorkerSettings(
            socket=need("SOCKET"),
            member=MemberId(need("MEMBER")),
            token=need("TOKEN"),
            run_dir=need("RUN_DIR"),
            progress_file=need("PROGRESS_FILE"),
            store_host=need("STORE_HOST"),
            store_port=_number(f"{_PREFIX}STORE_PORT", need("STORE_PORT")),
            ledger_digest_every=_number(f"{_PREFIX}LEDGER_DIGEST_EVERY", need("LEDGER_DIGEST_EVERY")),
            ledger_digests=values.get(f"{_PREFIX}LEDGER_DIGESTS", "auto"),  # an older agent does not name it
            check_replicas_every=_number(f"{_PREFIX}CHECK_REPLICAS_EVERY", need("CHECK_REPLICAS_EVERY")),
            peer_snapshot_every=_number(f"{_PREFIX}PEER_SNAPSHOT_EVERY", need("PEER_SNAPSHOT_EVERY")),
            checkpoint_dir=need("CHECKPOINT_DIR"),
            checkpoint_every=_number(f"{_PREFIX}CHECKPOINT_EVERY", need("CHECKPOINT_EVERY")),
            host=need("HOST"),
            devices=tuple(part for part in values.get(f"{_PREFIX}DEVICES", "").split(",") if part),
        )


def _todays_names(values: Mapping[str, str]) -> Mapping[str, str]:
    former = {old: name for old, name in FORMER_NAMES.items() if old in values and name not in values}
    for old, name in former.items():
        print(f"understudy: {old} is now called {name}; the former name works in this release only", file=sys.stderr)
    return {**values, **{name: values[old] for old, name in former.items()}}


def network_interfaces(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Which ones the engine was told to use. Empty: it looks for itself."""
    values = os.environ if environment is None else environment
    return tuple(name.strip() for name in values.get("GLOO_SOCKET_IFNAME", "").split(",") if name.strip())


def whole_environment() -> dict[str, str]:
    """For the command line, which passes it on: to processes that are started, and to what says where this host is."""
    return dict(os.environ)


def of_the_engine() -> Mapping[str, str]:
    """All of it, for a family of communicators that says under which settings it cannot be protected."""
    return dict(os.environ)


def set_for_the_engine(values: Mapping[str, str]) -> None:
    """Where the user has not set them; the engine reads them later."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


def set_view(variables: Mapping[str, str]) -> None:
    """Which devices this process sees, whatever it saw before."""
    os.environ.update(variables)


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Of this user; what is in it can be made again. It need not exist."""
    values = os.environ if environment is None else environment
    return Path(values.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "understudy"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSettings:
    """What torchrun tells a worker; all absent under plain `python`."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    launched: bool = False

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> "PlainSettings":
        values = os.environ if environment is None else environment
        if "RANK" not in values or "WORLD_SIZE" not in values:
            return PlainSettings()
        return PlainSettings(
            rank=_number("RANK", values["RANK"]),
            local_rank=_number("LOCAL_RANK", values.get("LOCAL_RANK", "0")),
            world_size=_number("WORLD_SIZE", values["WORLD_SIZE"]),
            launched=True,
        )


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise SettingsError(f"{name}={value} in the environment is no number") from None


def publish_rank(rank: int, local_rank: int, world_size: int, local_world_size: int, host: str, port: int) -> None:
    """Set the variables that scripts know from torchrun, once a member has its rank. After a host was lost a rank may
    be on another host than its number says; its group is what it was."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(local_world_size),
        GROUP_RANK=str(rank // local_world_size),
        GROUP_WORLD_SIZE=str(world_size // local_world_size),
        ROLE_RANK=str(rank),
        ROLE_WORLD_SIZE=str(world_size),
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
    )
