"""Ray Train's adapter with stand-ins for Ray: what it refuses and sets, what its workers do. The real one: claims."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from understudy.errors import UsageError
from understudy.integrations import ray as adapter
from understudy.integrations import ray_hosts, wrapping
from understudy.integrations.ray_hosts import Host, coordinator_here, mark_as_replacement


class Backend:
    has_replica_groups = False


class BackendConfig:
    pass


class ReplicaGroup:
    def __init__(self) -> None:
        self.called: list[Any] = []

    def execute(self, function: Callable[[], None]) -> None:
        self.called.append(function)


class LocalTrainFnUtils:
    def __init__(self, experiment_name: str, **place: int) -> None:
        self.name, self.place = experiment_name, place

    def report(self, metrics: Any) -> None: ...


class TrainingFailedError(RuntimeError):
    pass


@dataclass(frozen=True)
class Context:
    backend_config: Any
    run_id: str = field(init=False, default="one")


class Trainer:
    """Of Ray's TorchTrainer, what the adapter touches."""

    def __init__(self, workers: Any = 3, **more: Any) -> None:
        self.scaling_config, self.datasets = SimpleNamespace(num_workers=workers), more.get("datasets", {})
        self.run_config = SimpleNamespace(failure_config=SimpleNamespace(max_failures=more.get("max_failures", 0)))
        self.backend_config: Any = "torch's"
        self.train_run_context, self.code, self.made = Context(self.backend_config), 0, list[Any]()

    def _get_train_func(self) -> Any:
        return print

    def fit(self) -> Any:
        self.made.append(self._get_train_func())
        return SimpleNamespace(return_value=self.code)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As if Ray were there, on one machine."""
    nodes = [{"NodeManagerAddress": "10.0.0.1", "Alive": True}, {"NodeManagerAddress": "10.0.0.2", "Alive": False}]
    told = list[Any]()
    modules: dict[str, dict[str, Any]] = {
        "ray": {"is_initialized": lambda: True, "nodes": lambda: nodes, "told": told, "all_nodes": nodes},
        "ray.cloudpickle": {"dumps": repr},
        "ray.train": {"TrainingFailedError": TrainingFailedError},
        "ray.train.backend": {"Backend": Backend, "BackendConfig": BackendConfig},
        "ray.train.v2._internal.execution.worker_group": {"ReplicaGroup": ReplicaGroup},
        "ray.train.v2._internal.execution.train_fn_utils": {
            "LocalTrainFnUtils": LocalTrainFnUtils,
            "set_train_fn_utils": told.append,
        },
    }
    for name, names in modules.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["ray"].cloudpickle = sys.modules["ray.cloudpickle"]  # type: ignore[attr-defined]
    sys.modules["ray"].train = sys.modules["ray.train"]  # type: ignore[attr-defined]
    monkeypatch.setattr(wrapping, "version", lambda _: "2.60.0")
    return sys.modules["ray"]


@pytest.mark.parametrize(
    ("trainer", "spare_hosts", "named"),
    [
        (Trainer((1, 4)), 0, r"elastic workers \(num_workers=\(least, most\)\)"),
        (Trainer(0), 0, "num_workers=0"),
        (Trainer(datasets={"train": object()}), 0, "datasets of Ray Data"),
        (Trainer(3), 3, "spare_hosts=3 of 3 workers"),
        (Trainer(3), -1, "spare_hosts=-1 of 3 workers"),
    ],
)
def test_what_could_not_be_kept_going_is_refused(trainer: Any, spare_hosts: int, named: str) -> None:
    with pytest.raises(UsageError, match=f"does not work with {named}$"):
        adapter.protect(trainer, spare_hosts=spare_hosts)
    assert trainer.backend_config == "torch's"


@pytest.mark.parametrize(("given", "becomes"), [(0, -1), (7, 7), (-1, -1)])
@pytest.mark.usefixtures("ray")
def test_ray_replaces_single_workers_as_often_as_it_may(given: int, becomes: int) -> None:
    trainer = Trainer(max_failures=given)
    assert adapter.protect(trainer) is trainer
    assert trainer.run_config.failure_config.max_failures == becomes
    assert trainer.train_run_context.backend_config is trainer.backend_config
    backend, group = trainer.backend_config.backend_cls(), ReplicaGroup()
    assert backend.has_replica_groups
    backend.on_start(group, None)
    backend.on_start(SimpleNamespace(execute=None), None)  # all workers, at the beginning
    assert group.called == [mark_as_replacement]


@pytest.mark.usefixtures("ray")
def test_a_version_of_ray_without_single_replacements_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Backend, "has_replica_groups")
    with pytest.raises(
        UsageError, match=r"^ray 2\.60\.0 has no ray\.train\.backend\.Backend\.has_replica_groups, which"
    ):
        adapter.protect(Trainer())


def test_without_a_coordinator_of_the_users_there_is_one_machine(ray: Any) -> None:
    ray.all_nodes.append({"NodeManagerAddress": "10.0.0.3", "Alive": True})
    with pytest.raises(UsageError, match=r"several machines: protect\(coordinator=\.\.\.\)"):
        adapter.protect(Trainer()).fit()


@pytest.mark.usefixtures("ray")
def test_workers_get_the_coordinator_and_the_end_of_the_job_is_told(tmp_path: Path) -> None:
    trainer = Trainer()
    adapter.protect(trainer, "--nproc-per-node", 2, spare_hosts=1, coordinator="10.0.0.1:29400", run_dir=tmp_path)
    assert trainer.fit().return_value == 0
    [host] = trainer.made
    assert " ".join(host.flags) == f"--nproc-per-node 2 --run-dir {tmp_path} --nnodes 2 --coordinator 10.0.0.1:29400"
    assert (host.spare_hosts, host.here) == (1, "") and "print" in host.function
    trainer.code = 3
    with pytest.raises(TrainingFailedError, match="exit code 3"):
        trainer.fit()
    assert trainer.made[1] == host


def test_where_a_worker_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    here, elsewhere = Host((), 1, "127.0.0.1:1", b""), Host((), 0, "", b"")
    assert list(here._place(0, 3)) == ["--host-name", "worker-0", "--node-rank", "0"]
    assert list(here._place(2, 3)) == ["--host-name", "worker-2", "--spare-host"]
    assert list(elsewhere._place(2, 3)) == ["--node-rank", "2"]
    mark_as_replacement()
    assert list(elsewhere._place(2, 3)) == ["--spare-host"]


def run_host(monkeypatch: pytest.MonkeyPatch, script: str, here: str = "") -> int | None:
    """With a script in place of the agent."""
    context = SimpleNamespace(get_world_rank=lambda: 1, get_world_size=lambda: 2)
    train = ModuleType("ray.train")
    vars(train).update(get_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.train", train)
    vars(sys.modules["ray"]).update(train=train)
    commands = list[tuple[str, ...]]()

    def start(arguments: tuple[str, ...]) -> "subprocess.Popen[bytes]":
        commands.append(arguments)
        return subprocess.Popen([sys.executable, "-c", script])

    monkeypatch.setattr(ray_hosts, "_start", start)
    monkeypatch.setattr(ray_hosts, "_ATTENDS_WITHIN", 0.05)
    try:
        return Host(("--spares", "1"), 0, here, b"function")()
    finally:
        assert commands[0][:3] == ("run", "--spares", "1")
        assert commands[0][-3:-1] == ("-m", "understudy.integrations.ray")
        assert not Path(commands[0][-1]).exists()


def test_a_worker_ends_with_the_code_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_host(monkeypatch, "raise SystemExit(3)") == 3


def test_a_worker_whose_agent_was_killed_is_one_for_ray_to_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="agent of worker 1 was ended by signal 9"):
        run_host(monkeypatch, "import os; os.kill(os.getpid(), 9)")


def test_a_worker_that_comes_when_the_job_is_over_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_host(monkeypatch, "import time; time.sleep(60)", here="127.0.0.1:1") is None


def test_a_coordinator_here_listens_on_loopback_with_a_token(tmp_path: Path) -> None:
    with coordinator_here(tmp_path / "run") as here:
        assert here.address.startswith("127.0.0.1:") and ray_hosts._answers(here.address)
        flags = dict(zip(here.flags[::2], here.flags[1::2], strict=True))
        token = Path(flags["--token-file"])
        assert stat.S_IMODE(token.stat().st_mode) == 0o600 and len(token.read_text()) == 32
    assert here.process.returncode is not None and not token.exists()
    assert not ray_hosts._answers(here.address)


def test_ray_is_told_of_a_rank_and_what_it_would_do_wrongly_is_refused(
    ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    adapter._tell_ray(SimpleNamespace(world_size=4, rank=3, local_rank=1))  # type: ignore[arg-type]
    [rank] = ray.told
    assert rank.place == {
        "world_size": 4, "world_rank": 3, "local_rank": 1, "local_world_size": 2, "node_rank": 1
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"ray\.train's report does not work under Understudy"):
        rank.report({"loss": 1.0})


def test_without_protection_join_needs_nothing_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "UNDERSTUDY_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    job = adapter.join(seed=3)
    try:
        assert not job.protected
    finally:
        dist.destroy_process_group()
