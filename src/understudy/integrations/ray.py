"""Ray Train as a launcher: `protect(TorchTrainer(...), "--nproc-per-node", 2)`, and `join()` in the training function.

Every worker of Ray Train is a host of the job: an agent runs there, and ranks and spares under it, which call the
training function. Ray replaces a worker that was lost, and no other; what comes back offers its places as spares. The
loop is the function's own, as in any script. docs/frameworks/ray.md says what works, what does not and what it costs.
"""

import dataclasses
import functools
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

from understudy.errors import UsageError
from understudy.integrations.ray_hosts import CoordinatorHere, Host, coordinator_here, mark_as_replacement
from understudy.integrations.wrapping import around, found_in, refuse
from understudy.training import joining
from understudy.training.job import Job

__all__ = ["join", "protect"]

_EXECUTION = "ray.train.v2._internal.execution"
_NOT_IN_A_RANK = ("report", "barrier", "broadcast_from_rank_zero", "get_checkpoint", "get_all_reported_checkpoints")


def protect(
    trainer: Any, *flags: Any, spare_hosts: int = 0, coordinator: str = "", run_dir: str | Path | None = None
) -> Any:
    """Call it before `trainer.fit()`. `flags`: of `understudy run`. Of the workers `spare_hosts` offer spares only.
    `coordinator`: its addresses; without, one is started on this machine, for workers of this machine. Returns the
    trainer."""
    _refuse(trainer, spare_hosts)
    trainer.backend_config = _single_replacements()
    trainer.train_run_context = dataclasses.replace(trainer.train_run_context, backend_config=trainer.backend_config)
    failures = trainer.run_config.failure_config
    failures.max_failures = failures.max_failures or -1  # its default would end the job with the first lost worker
    folder = Path(run_dir or Path("understudy-runs", f"ray-{trainer.train_run_context.run_id}")).absolute()
    given = (*flags, "--run-dir", folder, "--nnodes", trainer.scaling_config.num_workers - spare_hosts)
    launch = _Launch(tuple(map(str, given)), spare_hosts, coordinator, folder)
    around("ray", trainer, fit=launch.fit, _get_train_func=launch.function)
    return trainer


@functools.wraps(joining.join)
def join(*args: Any, **kwargs: Any) -> Job:
    """Call it first in the training function: what `ray.train` tells of this rank is right from there on."""
    job = joining.join(*args, **kwargs)
    if job.protected:
        _tell_ray(job)
    return job


class _Launch:
    """What becomes of two functions of the trainer: `fit`, and the one that makes what Ray calls in its workers."""

    def __init__(self, flags: tuple[str, ...], spare_hosts: int, coordinator: str, run_dir: Path) -> None:
        self._flags, self._spare_hosts, self._coordinator, self._run_dir = flags, spare_hosts, coordinator, run_dir
        self._here: CoordinatorHere | None = None

    def fit(self, fit: Any) -> Any:
        import ray

        if not ray.is_initialized():
            ray.init()
        if not self._coordinator and len({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}) > 1:
            raise UsageError(
                "this cluster of Ray has several machines: protect(coordinator=...) says where `understudy "
                "coordinator` is, and --certs and --token-file are needed (docs/hosts.md)"
            )
        with ExitStack() as stack:
            self._here = None if self._coordinator else stack.enter_context(coordinator_here(self._run_dir))
            result = fit()
            code = self._here.wait() if self._here and result.return_value is None else result.return_value
        if code:
            error = found_in("ray", "ray.train", "TrainingFailedError")
            raise error(f"the job ended with exit code {code}; its folder is {self._run_dir}")
        return result

    def function(self, made: Any) -> Host:
        from ray import cloudpickle

        found = self._here.flags if self._here else ("--coordinator", self._coordinator)
        here = self._here.address if self._here else ""
        return Host((*self._flags, *found), self._spare_hosts, here, cloudpickle.dumps(made()))


def _single_replacements() -> Any:
    """A configuration with which Ray replaces a lost worker and leaves the others alone. It makes no process group."""
    backend, config = (found_in("ray", "ray.train.backend", name) for name in ("Backend", "BackendConfig"))
    found_in("ray", "ray.train.backend", "Backend.has_replica_groups")
    group = found_in("ray", f"{_EXECUTION}.worker_group", "ReplicaGroup")

    def on_start(_: Any, started: Any, __: Any) -> None:
        if isinstance(started, group):
            started.execute(mark_as_replacement)

    hosts = type("Hosts", (backend,), {"has_replica_groups": True, "on_start": on_start})
    return type("HostsConfig", (config,), {"backend_cls": hosts})()


def _tell_ray(job: Job) -> None:
    """Of a rank, which is no actor of Ray's: as in Ray's local mode, and what that would do wrongly is refused."""
    local, tell = (
        found_in("ray", f"{_EXECUTION}.train_fn_utils", name) for name in ("LocalTrainFnUtils", "set_train_fn_utils")
    )
    place = {"world_size": job.world_size, "world_rank": job.rank, "local_rank": job.local_rank}
    place |= {"local_world_size": int(os.environ["LOCAL_WORLD_SIZE"]), "node_rank": int(os.environ["GROUP_RANK"])}
    tell(type("Rank", (local,), {name: _refused(name) for name in _NOT_IN_A_RANK})("", **place))


def _refused(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise UsageError(f"ray.train's {name} does not work under Understudy; docs/frameworks/ray.md says what does")

    return refuse


def _refuse(trainer: Any, spare_hosts: int) -> None:
    workers = trainer.scaling_config.num_workers
    wrong = {
        "elastic workers (num_workers=(least, most))": not isinstance(workers, int),
        "num_workers=0": workers == 0,
        "datasets of Ray Data": trainer.datasets,
        f"spare_hosts={spare_hosts} of {workers} workers": workers in range(1, spare_hosts + 1) or spare_hosts < 0,
    }
    refuse("Ray Train", wrong)


if __name__ == "__main__":  # in every rank and spare
    from ray import cloudpickle

    cloudpickle.loads(Path(sys.argv[1]).read_bytes())()
