"""Durable checkpoints: what is saved comes back, what is damaged is not used, and what fails is told."""

import os
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_as_others_do
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from understudy.errors import CheckpointError
from understudy.foundation.clock import SetClock
from understudy.state.checkpoint import dcp_format
from understudy.state.checkpoint import save as saving
from understudy.state.checkpoint.dcp_format import write_metadata
from understudy.state.checkpoint.folders import examine, newest_sound, parts, survey, whole_checkpoints
from understudy.state.checkpoint.load import Loaded, load_checkpoint
from understudy.state.checkpoint.save import CheckpointSaver, Failed, Outcome, Saved, Skipped
from understudy.state.protected_state import Protected


class Average:
    """An object with state of its own: tensors (one without elements), numbers, a tuple."""

    def __init__(self) -> None:
        self.mean, self.nothing, self.range = torch.zeros(3), torch.zeros(0), (0.0, 0.0)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "nothing": self.nothing, "range": self.range}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.mean, self.nothing = state_dict["mean"].clone(), state_dict["nothing"].clone()
        self.range = state_dict["range"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2).bfloat16()
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.norm(self.first(x)).bfloat16())
        return y


class Script:
    """Model, optimizer with two groups, scheduler and an object, as a script would protect them."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.net, self.average = Net(), Average()
        groups: list[dict[str, Any]] = [
            {"params": self.net.first.parameters()},
            {"params": self.net.last.parameters(), "lr": 0.5},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2)
        self.protected = Protected(
            modules={"model": self.net},
            optimizers={"optimizer": self.optimizer},
            objects={"scheduler": self.scheduler, "average": self.average},
        )

    def train(self, steps: int, seed: int = 0) -> "Script":
        torch.manual_seed(seed)
        for step in range(steps):
            self.net(torch.rand(3, 4)).square().sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.net.scratch.add_(1.0)  # type: ignore[operator]
            self.average.mean += step
            self.average.range = (-1.0, float(step))
        return self

    def digests(self) -> tuple[str, str, str]:
        return self.protected.digest_parameters(), self.protected.digest_optimizer(), self.protected.digest_everything()


def finish(*savers: CheckpointSaver) -> list[Outcome]:
    """The next outcome of each."""
    for saver in savers:
        saver.close(60)
    outcomes = [saver.poll() for saver in savers]
    assert all(outcomes)
    return [outcome for outcome in outcomes if outcome]


def save(folder: Path, step: int, *ranks: Protected, rank_local: tuple[bytes, ...] = (), **options: Any) -> Path:
    """As if each of `ranks` were a process."""
    savers = [CheckpointSaver(folder, rank, len(ranks), patience=60, **options) for rank in range(len(ranks))]
    attempt = secrets.token_hex(4)
    for rank, (saver, protected) in enumerate(zip(savers, ranks, strict=True)):
        saver.begin(protected, step, attempt=attempt, rank_local=rank_local[rank] if rank_local else b"")
    outcomes = finish(*savers)
    assert all(isinstance(outcome, Saved) and not outcome.remarks for outcome in outcomes), outcomes
    assert isinstance(outcomes[0], Saved)
    return outcomes[0].path


def load(path: Path, protected: Protected, rank: int = 0, world_size: int = 1) -> Loaded:
    return load_checkpoint(path, protected, rank=rank, world_size=world_size)


# -- what is saved comes back ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps_before", [0, 1])
def test_a_fresh_script_that_loads_is_equal_and_stays_equal(tmp_path: Path, steps_before: int) -> None:
    saved, fresh = Script(1).train(3), Script(2).train(steps_before)
    places = [parameter.data_ptr() for parameter in fresh.net.parameters()]
    loaded = load(save(tmp_path, 3, saved.protected, rank_local=(b"streams",)), fresh.protected)
    assert loaded == Loaded(3, 1, b"streams", ())
    assert fresh.digests() == saved.digests()
    assert [group["lr"] for group in fresh.optimizer.param_groups] == [pytest.approx(0.01), pytest.approx(0.05)]
    assert fresh.scheduler.last_epoch == 3 and fresh.average.range == (-1.0, 2.0)
    assert [parameter.data_ptr() for parameter in fresh.net.parameters()] == places, "parameters keep their storage"
    assert saved.train(2, seed=5).digests() == fresh.train(2, seed=5).digests()


def test_the_copy_is_taken_at_once(tmp_path: Path) -> None:
    script, fresh = Script(1).train(1), Script(2)
    before = script.digests()
    saver = CheckpointSaver(tmp_path, 0, 1)
    saver.begin(script.protected, 1)
    script.train(2)
    assert isinstance(finish(saver)[0], Saved)
    load(tmp_path / "step-00000001", fresh.protected)
    assert fresh.digests() == before != script.digests()


def test_state_that_the_optimizer_did_not_have_then_goes(tmp_path: Path) -> None:
    saved, ahead = Script(1), Script(2).train(2)
    load(save(tmp_path, 0, saved.protected), ahead.protected)
    assert not any(ahead.optimizer.state.values())
    assert ahead.train(2, seed=5).digests() == saved.train(2, seed=5).digests()


def test_a_learning_rate_that_is_a_tensor_stays_the_same_tensor(tmp_path: Path) -> None:
    def make(rate: float) -> Protected:
        model = nn.Linear(2, 2)
        return Protected({"model": model}, {"optimizer": torch.optim.Adam(model.parameters(), lr=torch.tensor(rate))})

    saved, live = make(0.5), make(0.1)
    rate = live.optimizers["optimizer"].param_groups[0]["lr"]
    load(save(tmp_path, 0, saved), live)
    assert live.optimizers["optimizer"].param_groups[0]["lr"] is rate and rate.item() == 0.5


def test_numbers_in_the_state_of_an_optimizer(tmp_path: Path) -> None:
    def make() -> tuple[Protected, torch.optim.Optimizer]:
        model = nn.Linear(2, 2, bias=False)
        optimizer = torch.optim.SGD(model.parameters())
        return Protected({"model": model}, {"optimizer": optimizer}), optimizer

    (saved, one), (live, two) = make(), make()
    one.state[one.param_groups[0]["params"][0]].update(count=3, momentum_buffer=None)
    load(save(tmp_path, 0, saved), live)
    assert two.state[two.param_groups[0]["params"][0]] == {"count": 3, "momentum_buffer": None}


def own_functions(content: list[bytes]) -> Protected:
    def keep(path: Path) -> None:
        path.write_bytes(content[0])

    def restore(path: Path) -> None:
        content[0] = path.read_bytes()

    return Protected(save=keep, load=restore)


def test_the_scripts_own_functions(tmp_path: Path) -> None:
    path, live = save(tmp_path, 4, own_functions([b"one"]), own_functions([b"two"])), [b""]
    for rank, expected in enumerate([b"one", b"two"]):
        assert load(path, own_functions(live), rank, 2).notes == ()
        assert live == [expected]
    notes = load(path, own_functions(live), 2, 3).notes
    assert live == [b"one"] and "rank 2 of 3 took what differs from rank to rank from rank 0 of 2" in notes[0]


def test_tied_weights_are_stored_once_under_both_names(tmp_path: Path) -> None:
    one, two = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    two.weight = one.weight
    model = nn.Sequential(one, two)
    path = save(tmp_path, 0, Protected({"model": model}))
    stored = [each for part in parts(path) for each in part.stored]
    assert [(each.key, each.aliases) for each in stored] == [("model.0.weight", (("model", "1.weight"),))]
    read = {"model": {"1.weight": torch.zeros(3, 3)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no process group
        load_as_others_do(read, checkpoint_id=path)
    assert torch.equal(read["model"]["1.weight"], one.weight)


def test_names_do_not_depend_on_wrappers(tmp_path: Path) -> None:
    (one, two), (first, second) = ([nn.Linear(2, 2), nn.Linear(2, 2)] for _ in range(2))
    wrapped: Any = torch.compile(nn.Sequential(checkpoint_wrapper(one), two), backend="eager")
    optimizer = torch.optim.Adam(wrapped.parameters())
    optimizer.state[one.weight]["exp_avg"] = torch.rand(2, 2)
    path = save(tmp_path, 0, Protected({"model": wrapped}, {"optimizer": optimizer}))
    plain = nn.Sequential(first, second)
    other = torch.optim.Adam(plain.parameters())
    load(path, Protected({"model": plain}, {"optimizer": other}))
    assert torch.equal(first.weight, one.weight) and torch.equal(second.bias, two.bias)
    assert torch.equal(other.state[first.weight]["exp_avg"], optimizer.state[one.weight]["exp_avg"])


def test_two_models_of_one_optimizer_and_a_parameter_of_none(tmp_path: Path) -> None:
    def make(seed: int) -> tuple[Protected, torch.optim.Optimizer, list[torch.Tensor]]:
        torch.manual_seed(seed)
        one, two, loose = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Parameter(torch.rand(2))
        parameters = [one.weight, two.weight, loose]
        optimizer = torch.optim.Adam(parameters)
        return Protected({"one": one, "two": two}, {"optimizer": optimizer}), optimizer, parameters

    (saved, optimizer, parameters), (live, other, places) = make(1), make(2)
    for parameter in parameters:
        optimizer.state[parameter]["exp_avg"] = torch.rand_like(parameter)
    load(save(tmp_path, 0, saved), live)
    for parameter, place in zip(parameters, places, strict=True):
        assert torch.equal(other.state[place]["exp_avg"], optimizer.state[parameter]["exp_avg"])


# -- several ranks -----------------------------------------------------------------------------------------------------


def replicas(count: int) -> list[Script]:
    """Equal but for buffers and what each keeps for itself."""
    scripts = [Script(1).train(2) for _ in range(count)]
    for rank, script in enumerate(scripts):
        script.net.norm.running_mean.fill_(rank)  # type: ignore[union-attr]
        script.average.mean.fill_(rank)
    return scripts


def test_replicas_write_everything_once_together(tmp_path: Path) -> None:
    alone = save(tmp_path / "one", 2, Script(1).train(2).protected)
    both = save(tmp_path / "two", 2, *(script.protected for script in replicas(2)))
    count = [sum(len(part.stored) for part in parts(path)) for path in (alone, both)]
    assert count[1] - count[0] == 2, "what differs is there twice"
    assert all(part.stored for part in parts(both)), "everybody writes a part"


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_replicas_in_a_world_of_another_size(tmp_path: Path, world_size: int) -> None:
    saved = replicas(2)
    path = save(tmp_path, 2, *(script.protected for script in saved), rank_local=(b"zero", b"one"))
    for rank in range(world_size):
        fresh = Script(9)
        loaded = load(path, fresh.protected, rank, world_size)
        source = rank % 2
        assert fresh.digests() == saved[source].digests()
        assert loaded.rank_local == (b"zero", b"one")[source] and loaded.world_size == 2
        assert bool(loaded.notes) == (world_size != 2), "it is said when a rank takes another rank's state"
        assert world_size == 2 or "model.norm.running_mean" in loaded.notes[0]


def test_stages_that_are_named_alike_come_back_to_their_ranks_only(tmp_path: Path) -> None:
    stages = [Script(seed).train(1) for seed in (1, 2)]
    path = save(tmp_path, 1, *(stage.protected for stage in stages))
    for rank, stage in enumerate(stages):
        fresh = Script(9)
        load(path, fresh.protected, rank, 2)
        assert fresh.digests() == stage.digests()
    fresh = Script(9)
    before = fresh.digests()
    with pytest.raises(CheckpointError, match=r"same name .* can only be loaded by a world of 2"):
        load(path, fresh.protected, 0, 1)
    assert fresh.digests() == before


def test_stages_with_names_of_their_own_may_be_dealt_anew(tmp_path: Path) -> None:
    layers = [nn.Linear(3, 3) for _ in range(3)]
    one, two = (
        Protected({"model": nn.ModuleDict({"a": layers[0]})}),
        Protected({"model": nn.ModuleDict({"b": layers[1], "c": layers[2]})}),
    )
    path = save(tmp_path, 0, one, two)
    whole = {name: nn.Linear(3, 3) for name in "abc"}
    load(path, Protected({"model": nn.ModuleDict(whole)}))
    assert all(torch.equal(whole[name].weight, layer.weight) for name, layer in zip("abc", layers, strict=True))


@pytest.fixture
def enter_world() -> Iterator[Callable[[int, int], None]]:
    """Become a rank of a world without peers."""

    def enter(rank: int, size: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", rank=rank, world_size=size, store=HashStore())

    yield enter
    if dist.is_initialized():
        dist.destroy_process_group()


def sharded(weight: torch.Tensor, rank: int, shape: tuple[int, ...], placements: list[Any]) -> Protected:
    """A model whose weight is distributed, with an optimizer that has momentum for it."""
    names = tuple(f"d{place}-{rank}-{shape}" for place in range(len(shape)))  # torch caches equal meshes over worlds
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    part = weight
    for coordinate, size, placement in zip(mesh.get_coordinate() or [], shape, placements, strict=True):
        if isinstance(placement, Shard):
            chunks = part.chunk(size, placement.dim)
            part = chunks[coordinate] if coordinate < len(chunks) else part.narrow(placement.dim, 0, 0)
    model = nn.Linear(1, 1, bias=False)
    distributed = DTensor.from_local(
        part.clone(), mesh, placements, run_check=False, shape=weight.shape, stride=weight.stride()
    )
    model.weight = nn.Parameter(distributed)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    return Protected({"model": model}, {"optimizer": optimizer})


def momentum(protected: Protected) -> Any:
    (optimizer,) = protected.optimizers.values()
    return optimizer.state[optimizer.param_groups[0]["params"][0]]["momentum_buffer"]


LAYOUTS = [
    ((4,), [Shard(0)]),
    ((3,), [Shard(1)]),
    ((2, 2), [Replicate(), Shard(0)]),
    ((2, 2), [Shard(0), Shard(1)]),
    ((2,), [Replicate()]),
]


@pytest.mark.parametrize("before", LAYOUTS, ids=str)
@pytest.mark.parametrize("after", LAYOUTS, ids=str)
def test_shards_are_dealt_anew(
    tmp_path: Path, enter_world: Callable[[int, int], None], before: Any, after: Any
) -> None:
    weight = torch.rand(5, 7)
    count = torch.Size(before[0]).numel()
    savers = [CheckpointSaver(tmp_path, rank, count) for rank in range(count)]
    for rank, saver in enumerate(savers):
        enter_world(rank, count)
        protected = sharded(weight, rank, *before)
        model = protected.modules["model"]
        (optimizer,) = protected.optimizers.values()
        optimizer.state[model.weight]["momentum_buffer"] = (model.weight.detach() * 2).clone()  # type: ignore[index,operator]
        saver.begin(protected, 3)
    assert all(isinstance(outcome, Saved) for outcome in finish(*savers))
    size = torch.Size(after[0]).numel()
    for rank in range(size):
        enter_world(rank, size)
        wanted, live = sharded(weight, rank, *after), sharded(torch.zeros(5, 7), rank, *after)
        assert load(tmp_path / "step-00000003", live, rank, size).notes == ()
        expected = wanted.modules["model"].weight.to_local()  # type: ignore[union-attr,operator]
        assert torch.equal(live.modules["model"].weight.to_local(), expected)  # type: ignore[union-attr,operator]
        assert isinstance(momentum(live), DTensor) and torch.equal(momentum(live).to_local(), expected * 2)
    dist.destroy_process_group()
    plain = nn.Linear(7, 5, bias=False)
    load(tmp_path / "step-00000003", Protected({"model": plain}))
    assert torch.equal(plain.weight, weight)


def test_shards_that_are_named_alike_are_not_dealt_anew(
    tmp_path: Path, enter_world: Callable[[int, int], None]
) -> None:
    """Two stages, each in two shards, in one name: what a rank has stored is its shard, and no more."""
    savers = [CheckpointSaver(tmp_path, rank, 4) for rank in range(4)]
    for rank, saver in enumerate(savers):
        enter_world(rank, 4)
        saver.begin(sharded(torch.full((5, 7), float(rank // 2)), rank, (2, 2), [Replicate(), Shard(0)]), 3)
    assert all(isinstance(outcome, Saved) for outcome in finish(*savers))
    enter_world(3, 4)
    live = sharded(torch.zeros(5, 7), 3, (2, 2), [Replicate(), Shard(0)])
    load(tmp_path / "step-00000003", live, 3, 4)
    assert live.modules["model"].weight.to_local().eq(1).all()  # type: ignore[union-attr,operator]
    live = sharded(torch.zeros(5, 7), 3, (4,), [Shard(1)])
    with pytest.raises(CheckpointError, match=r"does not have all of __understudy__\.rank-3\.model\.weight"):
        load(tmp_path / "step-00000003", live, 3, 4)
    assert not live.modules["model"].weight.to_local().any()  # type: ignore[union-attr,operator]


# -- other readers -----------------------------------------------------------------------------------------------------


def test_others_can_read_it(tmp_path: Path) -> None:
    """By the recipe of torch's own documentation."""
    saved, fresh = Script(1).train(3), Script(2)
    path = save(tmp_path, 3, saved.protected)
    model, optimizer = get_state_dict(fresh.net, fresh.optimizer)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no process group
        load_as_others_do(state, checkpoint_id=path)
    set_state_dict(fresh.net, fresh.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert [group["lr"] for group in fresh.optimizer.param_groups] == [0.1 * 0.1, 0.5 * 0.1]
    ours, theirs = dict(saved.protected.inventory().tensors), dict(fresh.protected.inventory().tensors)
    for name in ours:
        if name != "parameters/model/scratch" and not name.startswith("object/"):
            assert torch.equal(ours[name], theirs[name]), name


def test_the_table_for_others_can_be_made_anew(tmp_path: Path) -> None:
    path = save(tmp_path, 1, *(script.protected for script in replicas(2)))
    (path / ".metadata").unlink()
    assert whole_checkpoints(tmp_path) == [(1, path)] and examine(path) is None, "nobody here needs it"
    write_metadata(path)
    dcp_to_torch_save(path, tmp_path / "one-file.pt")
    content = torch.load(tmp_path / "one-file.pt", weights_only=False)
    assert torch.equal(content["model"]["first.weight"], replicas(1)[0].net.first.weight)


# -- what is damaged is not used ---------------------------------------------------------------------------------------


def flip(path: Path, place: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def data_file(path: Path) -> Path:
    return next(path.glob("__1_*.distcp"))


DAMAGE: dict[str, tuple[Callable[[Path], object], bool, str]] = {
    "a flipped bit of data": (lambda path: flip(data_file(path), 700), False, "has changed"),
    "a cut file": (lambda path: os.truncate(data_file(path), 100), True, "has 100 bytes instead of"),
    "a longer file": (
        lambda path: data_file(path).write_bytes(data_file(path).read_bytes() + b"x"),
        True,
        "bytes instead of",
    ),
    "no data file": (lambda path: data_file(path).unlink(), True, "is not there"),
    "no rank file": (lambda path: (path / "rank-1.json").unlink(), True, "there is no rank-1.json"),
    "no rank file of rank 0": (lambda path: (path / "rank-0.json").unlink(), True, "there is no rank-0.json"),
    "a flipped bit of a rank file": (lambda path: flip(path / "rank-1.json", 200), True, "rank-1.json cannot be read"),
    "an empty rank file": (lambda path: (path / "rank-1.json").write_bytes(b""), True, "rank-1.json cannot be read"),
    "a rank file of another rank": (
        lambda path: shutil.copy(path / "rank-0.json", path / "rank-1.json"),
        True,
        "rank-1.json is of rank 0",
    ),
    "a rank file of another step": (
        lambda path: shutil.copy(path.with_name("step-00000002") / "rank-1.json", path),
        True,
        "is of rank 1 in step 2",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_the_next_older_one_offered(tmp_path: Path, kind: str) -> None:
    damage, cheap, reason = DAMAGE[kind]
    saved = replicas(2)
    older = save(tmp_path, 2, *(script.protected for script in saved))
    path = save(tmp_path, 4, *(script.protected for script in saved))
    assert newest_sound(tmp_path)[0] == survey(tmp_path)[0] and examine(path) is None
    damage(path)
    assert (whole_checkpoints(tmp_path)[0] == (2, older)) == cheap
    assert reason in (examine(path) or "")
    sound, passed_over = newest_sound(tmp_path)
    assert sound is not None and sound.path == older
    assert [found.path for found in passed_over] == [path] and reason in (passed_over[0].trouble or "")
    fresh = Script(9)
    before = fresh.digests()
    with pytest.raises(CheckpointError):
        load(path, fresh.protected, 1, 2)
    assert fresh.digests() == before, "nothing has changed"
    assert load(older, fresh.protected, 1, 2).step == 2


def test_no_byte_of_a_rank_file_can_change_unnoticed(tmp_path: Path) -> None:
    path = save(tmp_path, 1, Protected({"model": nn.Linear(2, 2)}))
    whole = (path / "rank-0.json").read_bytes()
    for place in range(len(whole)):
        flip(path / "rank-0.json", place)
        assert whole_checkpoints(tmp_path) == [], place
        (path / "rank-0.json").write_bytes(whole[:place])
        assert whole_checkpoints(tmp_path) == [], place
        (path / "rank-0.json").write_bytes(whole)
    assert len(whole_checkpoints(tmp_path)) == 1


def test_no_byte_of_the_data_can_change_unnoticed(tmp_path: Path) -> None:
    path = save(tmp_path, 1, Protected({"model": nn.Linear(2, 2)}))
    data = next(path.glob("*.distcp"))
    for place in range(0, data.stat().st_size, 7):
        flip(data, place)
        assert examine(path) is not None, place
        flip(data, place)
    assert examine(path) is None


def test_what_is_not_a_checkpoint_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "step-x").mkdir()
    (tmp_path / "step-00000007").write_text("a file")
    (tmp_path / "step-00000003").mkdir()
    assert [(found.step, found.trouble) for found in survey(tmp_path)] == [
        (3, "there is no rank-0.json: the save did not finish")
    ]
    assert survey(tmp_path / "nowhere") == [] == survey(tmp_path / "step-00000007")


@pytest.mark.parametrize(
    ("live", "reason"),
    [
        (Protected({"model": nn.Linear(3, 2)}), "Size mismatch"),
        (Protected({"model": nn.Linear(2, 2).double()}), "model.weight is torch.float64 here"),
        (Protected({"other": nn.Linear(2, 2)}), "has no other.weight"),
        (Protected({"model": nn.Linear(2, 2)}, objects={"average": Average()}), "has no __understudy__.objects"),
    ],
    ids=["shape", "type", "name", "object"],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, live: Protected, reason: str) -> None:
    path = save(tmp_path, 1, Protected({"model": nn.Linear(2, 2)}))
    with pytest.raises(CheckpointError, match=reason):
        load(path, live)


def test_an_object_that_does_not_take_its_state_is_named(tmp_path: Path) -> None:
    class Stubborn(Average):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            raise KeyError(f"none of {list(state_dict)}")

    path = save(tmp_path, 1, Protected(objects={"average": Average()}))
    with pytest.raises(CheckpointError, match="average did not take its state"):
        load(path, Protected(objects={"average": Stubborn()}))


def test_what_is_left_lying_is_told(tmp_path: Path) -> None:
    path = save(tmp_path, 1, Script(1).train(1).protected)
    notes = load(path, Protected({"model": Net()})).notes
    assert notes == ("not protected here, and not taken: average, optimizer, scheduler",)


# -- what fails is told ------------------------------------------------------------------------------------------------


def only(outcomes: list[Outcome], kind: type) -> Any:
    (outcome,) = outcomes
    assert isinstance(outcome, kind), outcome
    return outcome


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    script = Script(1).train(1)
    saver = CheckpointSaver(tmp_path / "file" / "checkpoints", 0, 1)
    saver.begin(script.protected, 1)
    script.train(1)
    failed = only(finish(saver), Failed)
    assert failed.step == 1 and "NotADirectoryError" in failed.reason
    assert saver.poll() is None


def test_a_full_disk_leaves_no_half_written_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(1).train(1)
    calls = 0

    def look_up(_: CheckpointSaver) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(CheckpointSaver, "_look_up", look_up)
    saver = CheckpointSaver(tmp_path, 0, 1)
    saver.begin(script.protected, 1)
    assert "No space left" in only(finish(saver), Failed).reason
    assert not list((tmp_path / "step-00000001").glob("*.distcp")) and whole_checkpoints(tmp_path) == []


class Unsayable:
    def state_dict(self) -> dict[str, Any]:
        return {"handle": object()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def broken_save(path: Path) -> None:
    raise RuntimeError(f"cannot write {path.name}")


@pytest.mark.parametrize(
    ("protected", "reason"),
    [
        (Protected(objects={"handle": Unsayable()}), "handle is a object"),
        (Protected(save=broken_save, load=broken_save), "cannot write state"),
        (Protected({"model": nn.Linear(2, 2, device="meta")}), "could not be copied"),
    ],
    ids=["object", "own function", "no memory behind it"],
)
def test_state_that_cannot_be_copied(tmp_path: Path, protected: Protected, reason: str) -> None:
    saver = CheckpointSaver(tmp_path, 0, 1)
    saver.begin(protected, 5)
    outcome = saver.poll()
    assert isinstance(outcome, Failed) and reason in outcome.reason and outcome.step == 5
    saver.begin(Protected({"model": nn.Linear(2, 2)}), 6)
    assert only(finish(saver), Saved).step == 6, "the next one is tried as ever"


def test_a_rank_that_never_says_what_it_holds(tmp_path: Path) -> None:
    saver = CheckpointSaver(tmp_path, 0, 2, patience=0.0)
    saver.begin(Script(1).protected, 1)
    assert only(finish(saver), Failed).reason == "rank 1 did not say what it holds within 0 s"


def test_a_rank_that_fails_to_write_is_not_waited_for_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path, prefix: str, *rest: Any) -> Any:
        if prefix.startswith("__1"):
            raise OSError("disk on fire")
        return really(path, prefix, *rest)

    really = dcp_format.write_share
    monkeypatch.setattr(saving, "write_share", fails)
    clock = SetClock()
    waits, burns = (CheckpointSaver(tmp_path, rank, 2, patience=60, clock=clock) for rank in range(2))
    for saver in (waits, burns):
        saver.begin(Script(1).protected, 1)
    assert "disk on fire" in only(finish(burns), Failed).reason
    while not (tmp_path / "step-00000001" / "rank-0.json").exists():
        time.sleep(0.01)
    assert waits.poll() is None
    while (outcome := waits.poll()) is None:
        clock.advance_to(clock.now() + 61)  # wherever it is, its patience ends
        time.sleep(0.01)
    assert outcome == Failed(1, "rank 1 did not finish its part within 60 s")
    assert "rank-1.json" in (survey(tmp_path)[0].trouble or "")


def test_a_save_that_is_due_too_early_is_skipped_and_closing_ends_the_wait(tmp_path: Path) -> None:
    saver = CheckpointSaver(tmp_path, 0, 2)
    saver.begin(Script(1).protected, 1)
    saver.begin(Script(1).protected, 2)
    assert saver.poll() == Skipped(2, "the save of step 1 is still under way")
    assert saver.poll() is None
    saver.close(0.0)
    assert saver.poll() == Failed(1, "the saver was closed, and rank 1 did not say what it holds until then")
    saver.begin(Script(1).protected, 3)
    assert saver.poll() == Skipped(3, "the saver was closed")


# -- the same step again, and old ones ---------------------------------------------------------------------------------


def test_what_an_earlier_save_of_the_step_left_is_not_mixed_in(tmp_path: Path) -> None:
    lonely = CheckpointSaver(tmp_path, 1, 2)  # its world ended before it was whole
    lonely.begin(Script(1).protected, 6, attempt="first")
    lonely.close(0.0)
    savers = [CheckpointSaver(tmp_path, rank, 2) for rank in range(2)]
    new = Script(2).train(2)
    for saver in savers:
        saver.begin(new.protected, 6, attempt="second")
    assert all(isinstance(outcome, Saved) for outcome in finish(*savers))
    fresh = Script(9)
    load(tmp_path / "step-00000006", fresh.protected, 1, 2)
    assert fresh.digests() == new.digests()


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_one_may_be_saved_again(tmp_path: Path, kind: str) -> None:
    scripts = replicas(2)
    save(tmp_path, 2, *(script.protected for script in scripts))
    DAMAGE[kind][0](save(tmp_path, 4, *(script.protected for script in scripts)))
    path = save(tmp_path, 4, *(script.train(1).protected for script in scripts))
    assert examine(path) is None
    assert len(list(path.glob("*.distcp"))) == 2, "nothing is left of the earlier one"


def test_a_step_may_be_saved_again_by_a_world_of_another_size(tmp_path: Path) -> None:
    save(tmp_path, 6, *(script.protected for script in replicas(3)))
    path = save(tmp_path, 6, Script(5).protected)
    assert examine(path) is None and len(parts(path)) == 1
    fresh = Script(9)
    load(path, fresh.protected)
    assert fresh.digests() == Script(5).digests()


def test_parts_of_two_saves_are_never_one(tmp_path: Path) -> None:
    older = save(tmp_path / "a", 6, *(script.protected for script in replicas(2)))
    path = save(tmp_path / "b", 6, *(script.train(1).protected for script in replicas(2)))
    for file in (older / "rank-1.json", *older.glob("__1_*")):
        shutil.copy(file, path)
    assert examine(path) == "rank 1 has not finished: its part is of another save of this step"


def test_old_ones_go_and_are_named(tmp_path: Path) -> None:
    script = Script(1)
    (tmp_path / "step-00000001").mkdir()
    saver = CheckpointSaver(tmp_path, 0, 1, keep=2)
    removed = []
    for step in (2, 4, 6):
        saver = CheckpointSaver(tmp_path, 0, 1, keep=2)
        saver.begin(script.protected, step)
        removed.append(only(finish(saver), Saved).removed)
    assert removed == [
        (),
        ("step-00000001 (there is no rank-0.json: the save did not finish)",),
        ("step-00000002 (whole)",),
    ]
    assert [step for step, _ in whole_checkpoints(tmp_path)] == [6, 4]


def test_nothing_goes_before_enough_are_whole(tmp_path: Path) -> None:
    save(tmp_path, 2, Script(1).protected, keep=2)
    path = save(tmp_path, 4, Script(1).protected, keep=2)
    (path / "rank-0.json").unlink()
    save(tmp_path, 6, Script(1).protected, keep=2)
    assert [found.step for found in survey(tmp_path)] == [6, 4, 2]
