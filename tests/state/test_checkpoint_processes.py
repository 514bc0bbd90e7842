"""Durable checkpoints of real worlds: FSDP2 and DDP over gloo, other world sizes, and savers that are killed."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from understudy.state.checkpoint import save
from understudy.state.checkpoint.folders import examine, newest_sound, whole_checkpoints
from understudy.state.checkpoint.load import load_checkpoint
from understudy.state.checkpoint.save import CheckpointSaver, Saved
from understudy.state.protected_state import Protected

pytestmark = pytest.mark.processes

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch._dynamo", "understudy.state.checkpoint.load"])


def run_world(size: int, act: Callable[..., None], folder: Path, *rest: Any) -> None:
    """`act` in so many processes; all must end well."""
    meeting = folder / f"meeting-{act.__name__}-{size}"
    processes = [_server.Process(target=_enter, args=(act, meeting, folder, rank, size, *rest)) for rank in range(size)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(90)
        assert [process.exitcode for process in processes] == [0] * size
    finally:
        for process in processes:
            process.kill()


def _enter(act: Callable[..., None], meeting: Path, folder: Path, rank: int, size: int, *rest: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, store=FileStore(str(meeting), size))
    act(folder, rank, size, *rest)
    dist.barrier()
    dist.destroy_process_group()


class Net(nn.Module):
    """Odd sizes, so that shards are uneven and some are empty."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(5, 10), nn.Linear(10, 3)])
        self.norm, self.last = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.inner:
            x = layer(x).relu()
        y: torch.Tensor = self.last(self.norm(x))
        return y


def make(seed: int, wrap: Callable[[nn.Module], nn.Module]) -> Protected:
    torch.manual_seed(seed)
    net = Net()
    model = wrap(net)
    groups: list[dict[str, Any]] = [
        {"params": list(net.inner.parameters())},
        {"params": [*net.norm.parameters(), *net.last.parameters()], "lr": 0.05, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return Protected({"model": model}, {"optimizer": optimizer}, {"scheduler": scheduler})


def train(protected: Protected, steps: int, seed: int) -> None:
    model, optimizer = protected.modules["model"], protected.optimizers["optimizer"]
    torch.manual_seed(seed)
    for _ in range(steps):
        model(torch.rand(4, 5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        protected.objects["scheduler"].step()  # type: ignore[attr-defined]


def shard(model: nn.Module) -> nn.Module:
    for layer in model.inner:  # type: ignore[union-attr]
        fully_shard(layer)
    fully_shard(model)
    return model


def shard_twice(model: nn.Module) -> nn.Module:
    """Tensor parallel in pairs, FSDP2 over these."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shards", "tensor"))
    plan = {"inner.0": ColwiseParallel(), "inner.1": RowwiseParallel()}
    parallelize_module(model, mesh["tensor"], plan)
    for layer in model.inner:  # type: ignore[union-attr]
        fully_shard(layer, mesh=mesh["shards"])
    fully_shard(model, mesh=mesh["shards"])
    return model


def whole_state(protected: Protected) -> dict[str, Any]:
    """Everything, gathered, by names that do not depend on wrappers."""
    (model,), (optimizer,) = protected.modules.values(), protected.optimizers.values()
    found: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        bare = name.removeprefix("module.")
        found[bare] = _gathered(parameter)
        found |= {f"{bare}/{key}": _gathered(value) for key, value in optimizer.state[parameter].items()}
    found["groups"] = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    found["scheduler"] = protected.objects["scheduler"].state_dict()
    return found


def _gathered(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def compare(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        same = torch.equal(value, two[name]) if isinstance(value, torch.Tensor) else value == two[name]
        assert same, name


def save_now(folder: Path, rank: int, size: int, protected: Protected, step: int) -> None:
    saver = CheckpointSaver(folder / "checkpoints", rank, size, patience=60)
    saver.begin(protected, step)
    saver.close(60)
    outcome = saver.poll()
    assert isinstance(outcome, Saved) and not outcome.remarks, outcome


# -- FSDP2: saved by four, loaded by two and by one --------------------------------------------------------------------


def _save_sharded(folder: Path, rank: int, size: int, wrap: Callable[[nn.Module], nn.Module]) -> None:
    protected = make(1, wrap)
    train(protected, 3, seed=rank // 2)
    save_now(folder, rank, size, protected, 3)
    reference = whole_state(protected)
    if rank == 0:
        torch.save(reference, folder / "reference.pt")


def _load_sharded(folder: Path, rank: int, size: int) -> None:
    protected = make(2, shard)
    places = [parameter.to_local().data_ptr() for parameter in protected.modules["model"].parameters()]  # type: ignore[attr-defined]
    ((step, path),) = whole_checkpoints(folder / "checkpoints")
    assert examine(path) is None
    loaded = load_checkpoint(path, protected, rank=rank, world_size=size)
    assert loaded.step == step == 3 and loaded.world_size == 4
    assert [parameter.to_local().data_ptr() for parameter in protected.modules["model"].parameters()] == places  # type: ignore[attr-defined]
    compare(whole_state(protected), torch.load(folder / "reference.pt", weights_only=False))
    train(protected, 1, seed=9)  # what was put together can be trained


@pytest.mark.parametrize("wrap", [shard, shard_twice])
def test_shards_of_four_are_loaded_by_two_and_by_one(tmp_path: Path, wrap: Callable[[nn.Module], nn.Module]) -> None:
    run_world(4, _save_sharded, tmp_path, wrap)
    run_world(2, _load_sharded, tmp_path)
    plain = make(2, lambda model: model)
    ((_, path),) = whole_checkpoints(tmp_path / "checkpoints")
    load_checkpoint(path, plain, rank=0, world_size=1)
    compare(whole_state(plain), torch.load(tmp_path / "reference.pt", weights_only=False))


# -- DDP: saved by two, loaded by three and by a plain model -----------------------------------------------------------


def _save_replicated(folder: Path, rank: int, size: int) -> None:
    protected = make(1, DistributedDataParallel)
    train(protected, 3, seed=rank)
    torch.save(dict(protected.modules["model"].named_buffers()), folder / f"buffers-{rank}.pt")
    save_now(folder, rank, size, protected, 3)
    if rank == 0:
        torch.save(whole_state(protected), folder / "reference.pt")


def _load_replicated(folder: Path, rank: int, size: int) -> None:
    protected = make(2, DistributedDataParallel)
    ((_, path),) = whole_checkpoints(folder / "checkpoints")
    loaded = load_checkpoint(path, protected, rank=rank, world_size=size)
    compare(whole_state(protected), torch.load(folder / "reference.pt", weights_only=False))
    buffers = torch.load(folder / f"buffers-{rank % 2}.pt", weights_only=True)
    compare(dict(protected.modules["model"].named_buffers()), buffers)
    assert f"rank {rank} of 3 took what differs from rank to rank from rank {rank % 2} of 2" in loaded.notes[0]
    train(protected, 1, seed=9)


def test_replicas_of_two_are_loaded_by_three_and_by_a_plain_model(tmp_path: Path) -> None:
    run_world(2, _save_replicated, tmp_path)
    run_world(3, _load_replicated, tmp_path)
    plain = make(2, lambda model: model)
    ((_, path),) = whole_checkpoints(tmp_path / "checkpoints")
    load_checkpoint(path, plain, rank=0, world_size=1)
    compare(whole_state(plain), torch.load(tmp_path / "reference.pt", weights_only=False))


# -- the end of a process ----------------------------------------------------------------------------------------------


def _end_while_saving(folder: Path) -> None:
    torch.set_num_threads(1)
    CheckpointSaver(folder, 0, 2).begin(make(2, lambda model: model), 4)  # rank 1 does not exist


def test_a_save_that_waits_does_not_hold_up_the_end_of_its_process(tmp_path: Path) -> None:
    process = _server.Process(target=_end_while_saving, args=(tmp_path,))
    process.start()
    try:
        process.join(60)
        assert process.exitcode == 0
    finally:
        process.kill()


# -- a saver is killed -------------------------------------------------------------------------------------------------

PLACES = ["digest_one", "divide", "write_share", "describe_file", "sync_folder", "write_metadata", "prune"]


def _stop_in(place: str, folder: Path, times: int) -> None:
    """A rank alone, that saves and comes to a stop when `place` is called for the so many-th time."""
    torch.set_num_threads(1)
    really, calls = getattr(save, place), 0

    def reached(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == times:
            (folder / "reached").touch()
            signal.pause()
        return really(*arguments)

    setattr(save, place, reached)
    saver = CheckpointSaver(folder / "checkpoints", 0, 1, keep=1)
    saver.begin(make(2, lambda model: model), 4)
    saver.close(60)


def _stop_while_writing(_: str, folder: Path, times: int) -> None:
    """The same, in the middle of the data."""
    torch.set_num_threads(1)
    calls = 0

    def look_up(_: CheckpointSaver) -> None:
        nonlocal calls
        calls += 1
        if calls == times:
            (folder / "reached").touch()
            signal.pause()

    CheckpointSaver._look_up = look_up  # type: ignore
    saver = CheckpointSaver(folder / "checkpoints", 0, 1, keep=1)
    saver.begin(make(2, lambda model: model), 4)
    saver.close(60)


@contextlib.contextmanager
def killed(act: Callable[..., None], *arguments: Any, folder: Path) -> Iterator[None]:
    process = _server.Process(target=act, args=arguments)
    process.start()
    try:
        end = time.monotonic() + 60
        while not (folder / "reached").exists():
            assert process.is_alive() and time.monotonic() < end
            process.join(0.01)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join(20)
        yield
    finally:
        process.kill()


@pytest.mark.parametrize("place", [*PLACES, "data"])
def test_a_saver_that_is_killed_leaves_an_older_checkpoint_to_go_on_from(tmp_path: Path, place: str) -> None:
    plain = make(1, lambda model: model)
    save_now(tmp_path, 0, 1, plain, 2)
    act = _stop_while_writing if place == "data" else _stop_in
    with killed(act, place, tmp_path, 10 if place == "data" else 1, folder=tmp_path):
        sound, passed_over = newest_sound(tmp_path / "checkpoints")
    assert sound is not None
    after_the_last_word = place in ("write_metadata", "prune")
    assert sound.step == (4 if after_the_last_word else 2)
    assert [found.step for found in passed_over] == ([] if after_the_last_word else [4])
    save_now(tmp_path, 0, 1, plain, 4)  # whoever comes next begins the step's save anew
    assert [step for step, _ in whole_checkpoints(tmp_path / "checkpoints")] == [4, 2]
