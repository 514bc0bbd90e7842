"""Faults in a job under Ray Train, and a small cluster of Ray for it: one machine, no dashboard, no usage statistics.

Ray's daemons listen on every interface that they find: whoever starts this gives them the loopback interface only.
Places are those of `framework_script`, and `host`: a whole worker of Ray's, with the agent and the ranks under it. That
waits until a spare is warm on another host, and so a second one waits for what Ray starts in place of the first.
"""

import atexit
import functools
import os
import secrets
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

from understudy.detection.progress import Place
from understudy.files.private import write_private
from understudy_testkit.faults.framework_script import Hurt, Kills, kills_by_step
from understudy_testkit.faults.watching import look, page_of

_FLAGS = (
    *("--ledger-digest-every", 1, "--host-quarantine", 0, "--spares", 1),
    *("--busy-timeout", 600),  # a rank that waits for a spare before it is lost is not hung
)
_SETTINGS = {
    "GLOO_SOCKET_IFNAME": "lo",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_enable_worker_prestart": "0",  # each would be a process that imports Ray, for nothing
    "RAY_prestart_worker_first_driver": "0",
}
_ADDRESS = "127.0.0.2"  # Ray takes 127.0.0.1 for "any address of this machine"
_SHORT = "/tmp"  # Ray makes paths of sockets in it, some 70 characters long, of 107 that there may be
_OBJECT_STORE = 80 * 2**20  # bytes; Ray wants 75 MiB at least


def arm(wanted: list[str], proofs: Path) -> None:
    """In the driver: the example's trainer gets a function with faults. Begins the cluster, which ends with it. In a
    rank, under `understudy run`: the trainer calls its function there, without Ray and without faults."""
    from understudy.integrations import ray

    protect = ray.protect
    if "UNDERSTUDY_SOCKET" in os.environ:
        ray.protect = _without_ray
        return

    def armed(trainer: Any, *flags: Any, **others: Any) -> Any:
        trainer.train_loop_per_worker = functools.partial(train, trainer.train_loop_per_worker, wanted, proofs)
        return protect(trainer, *_FLAGS, *flags, **others)

    ray.protect = armed
    begin_cluster(proofs.parent)


def _without_ray(trainer: Any, *_: Any, **__: Any) -> Any:
    trainer.fit = functools.partial(trainer.train_loop_per_worker, trainer.train_loop_config)
    return trainer


def begin_cluster(folder: Path) -> None:
    write_private(folder / "ray-token", secrets.token_hex(32).encode())
    os.environ.update(_SETTINGS, RAY_AUTH_TOKEN_PATH=str(folder / "ray-token"))
    short = tempfile.mkdtemp(prefix="ray-", dir=_SHORT)
    atexit.register(shutil.rmtree, short, ignore_errors=True)  # once Ray, which comes later, has ended
    import ray

    ray.init(
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE,
        _node_ip_address=_ADDRESS,
        _temp_dir=short,
    )


def train(function: Any, wanted: list[str], proofs: Path, config: Any) -> None:
    """In a rank: the user's function, which finds faults in what it protects."""
    from understudy.integrations import ray

    join = ray.join

    def armed(*args: Any, **kwargs: Any) -> Any:
        job = join(*args, **kwargs)
        protect = job.protect

        def protected(**named: Any) -> None:
            protect(**named)
            kills = kills_by_step(wanted, proofs, job, HostKills)
            arm_loop(named["model"], named["optimizer"], kills.hurt)

        setattr(job, "protect", protected)  # noqa: B010 (a method)
        return job

    ray.join = armed  # type: ignore[assignment]
    function(config)


def arm_loop(model: Any, optimizer: Any, hurt: Hurt) -> None:
    import torch

    def before(module: Any, *_: Any) -> None:
        hurt("forward" if module.training else "evaluation")
        if module.training:
            hurt("host")

    model.register_forward_pre_hook(before)
    next(model.parameters()).register_hook(lambda _: hurt("backward"))
    optimizer.register_step_pre_hook(lambda *_: hurt("optimizer"))
    barrier = torch.distributed.barrier

    def saving(*args: Any, **kwargs: Any) -> Any:
        hurt("saving")
        return barrier(*args, **kwargs)

    torch.distributed.barrier = saving


class HostKills(Kills):
    """The processes of the job are those of this network namespace."""

    def ready(self, place: str) -> bool:
        here = Path(page_of(os.getpid()) or "").parent
        return any((parent != here) if place == "host" else (parent == here) for parent in _hosts_with_a_warm_spare())

    def strike(self, place: str) -> None:
        agent = os.getppid()
        if place == "host":
            os.kill(_parent_of(agent), signal.SIGKILL)
            os.kill(agent, signal.SIGKILL)
        super().strike(place)


def _hosts_with_a_warm_spare() -> set[Path]:
    """As folders of progress pages, of which each agent has its own."""
    network, found = os.readlink("/proc/self/ns/net"), set[Path]()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            page = page_of(int(entry.name)) if os.readlink(entry / "ns" / "net") == network else None
        except OSError:
            continue
        if page is not None and os.path.exists(page) and look(page).place is Place.PARKED:
            found.add(Path(page).parent)
    return found


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
