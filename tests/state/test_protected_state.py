"""What a rank holds: the list, its installation in a fresh copy, and who is whose twin."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from understudy.errors import ProtectError
from understudy.state.protected_state import Inventory, Protected


class Average:
    """An object with state of its own: tensors, numbers, and a tuple."""

    def __init__(self) -> None:
        self.mean, self.count, self.range = torch.zeros(3), 0, (0.0, 0.0)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "count": self.count, "range": self.range}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.mean, self.count, self.range = state_dict["mean"].clone(), state_dict["count"], state_dict["range"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.norm(self.first(x)))
        return y


class Script:
    """Model, optimizer, scheduler and an object, as a script would protect them."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.net = Net()
        groups: list[dict[str, Any]] = [
            {"params": self.net.first.parameters()},
            {"params": self.net.last.parameters(), "lr": 0.5},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2)
        self.average = Average()
        self.protected = Protected(
            modules={"model": self.net},
            optimizers={"optimizer": self.optimizer},
            objects={"scheduler": self.scheduler, "average": self.average},
        )

    def train(self, steps: int) -> None:
        for step in range(steps):
            self.net(torch.full((3, 4), float(step)) + torch.rand(3, 4)).square().sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.net.scratch.add_(1.0)  # type: ignore[operator]
            self.average.mean += step
            self.average.count, self.average.range = step + 1, (-1.0, float(step))

    def digests(self) -> tuple[str, str, str]:
        return self.protected.digest_parameters(), self.protected.digest_optimizer(), self.protected.digest_everything()


def carried(inventory: Inventory) -> Inventory:
    """As if it had come over the network: nothing shared with the sender."""
    return Inventory({path: tensor.clone() for path, tensor in inventory.tensors.items()}, bytes(inventory.plain))


def install(script: Script, received: Inventory) -> None:
    """Parameters land in their own storage before `install` is called."""
    own = script.protected.inventory().tensors
    for path, tensor in received.tensors.items():
        if path.startswith("parameters/"):
            own[path].copy_(tensor)
            received.tensors[path] = own[path]
    script.protected.install(received)


def test_everything_is_listed() -> None:
    script = Script(1)
    script.train(1)
    paths = set(script.protected.inventory().tensors)
    assert {"parameters/model/first.weight", "parameters/model/norm.running_mean", "parameters/model/scratch"} <= paths
    assert {"optimizer/optimizer/0/exp_avg", "optimizer/optimizer/3/step", "object/0"} <= paths


def test_a_fresh_copy_that_takes_the_inventory_is_equal_and_stays_equal() -> None:
    donor, joiner = Script(1), Script(2)
    donor.train(3)
    assert joiner.digests() != donor.digests()
    install(joiner, carried(donor.protected.inventory()))
    assert joiner.digests() == donor.digests()
    assert joiner.optimizer.param_groups[0]["lr"] == donor.optimizer.param_groups[0]["lr"]
    assert joiner.scheduler.last_epoch == donor.scheduler.last_epoch
    assert joiner.average.range == (-1.0, 2.0) and joiner.average.count == 3
    for script in (donor, joiner):
        torch.manual_seed(5)
        script.train(2)
    assert joiner.digests() == donor.digests()


def test_a_copy_with_older_state_takes_the_newer_one_too() -> None:
    donor, laggard = Script(1), Script(2)
    donor.train(3)
    laggard.train(1)
    install(laggard, carried(donor.protected.inventory()))
    assert laggard.digests() == donor.digests()


def test_optimizer_state_that_the_donor_does_not_have_is_dropped() -> None:
    donor, joiner = Script(1), Script(2)
    joiner.train(2)
    install(joiner, carried(donor.protected.inventory()))
    assert not joiner.optimizer.state
    for script in (donor, joiner):
        torch.manual_seed(5)
        script.train(2)
    assert joiner.digests() == donor.digests()


def test_what_is_frozen_is_frozen_at_the_receiver_too() -> None:
    donor, joiner = Script(1), Script(2)
    donor.net.first.requires_grad_(False)
    joiner.net.norm.requires_grad_(False)
    install(joiner, carried(donor.protected.inventory()))
    learns = [parameter.requires_grad for parameter in joiner.net.parameters()]
    assert learns == [parameter.requires_grad for parameter in donor.net.parameters()] and not all(learns)


def test_a_learning_rate_that_is_a_tensor_stays_where_it_is() -> None:
    def made(rate: float) -> Protected:
        model = nn.Linear(2, 2)
        return Protected({"m": model}, {"o": torch.optim.Adam(model.parameters(), lr=torch.tensor(rate))})

    donor, joiner = made(0.5), made(0.25)
    rate = joiner.optimizers["o"].param_groups[0]["lr"]
    joiner.install(carried(donor.inventory()))
    assert joiner.optimizers["o"].param_groups[0]["lr"] is rate and rate.item() == 0.5


def change_parameter(script: Script) -> None:
    with torch.no_grad():
        script.net.first.bias[0] += 1e-3


def change_buffer(script: Script) -> None:
    script.net.norm.running_var.add_(1e-3)  # type: ignore[union-attr]


def change_moment(script: Script) -> None:
    next(iter(script.optimizer.state.values()))["exp_avg"][0] += 1e-3


def change_rate(script: Script) -> None:
    script.optimizer.param_groups[1]["lr"] *= 2


def change_number(script: Script) -> None:
    script.average.count += 1


def change_tensor_of_an_object(script: Script) -> None:
    script.average.mean += 1e-3


@pytest.mark.parametrize(
    "change",
    [change_parameter, change_buffer, change_moment, change_rate, change_number, change_tensor_of_an_object],
)
def test_no_change_escapes_the_digests(change: Any) -> None:
    script = Script(1)
    script.train(2)
    before = script.digests()
    assert script.digests() == before
    change(script)
    assert script.digests() != before


def test_an_object_that_cannot_be_sent_is_refused_with_its_path() -> None:
    class Bad:
        def state_dict(self) -> dict[str, Any]:
            return {"handle": object()}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

    with pytest.raises(ProtectError, match=r"objects\.ema\.handle is a object"):
        Protected(objects={"ema": Bad()}).inventory()


def test_the_scripts_own_functions_carry_the_state() -> None:
    donor, joiner = nn.Linear(3, 3), nn.Linear(3, 3)

    def own(model: nn.Module) -> Protected:
        def save(path: Path) -> None:
            torch.save(model.state_dict(), path)

        def load(path: Path) -> None:
            model.load_state_dict(torch.load(path, weights_only=True))

        return Protected(save=save, load=load)

    one, two = own(donor), own(joiner)
    assert one.digest_parameters() != two.digest_parameters()
    two.install(carried(one.inventory()))
    assert one.digest_parameters() == two.digest_parameters()
    assert torch.equal(donor.weight, joiner.weight)


def test_a_plain_part_from_elsewhere_is_refused() -> None:
    with pytest.raises((ProtectError, msgspec.DecodeError, TypeError, KeyError)):
        Protected().install(Inventory({}, b"\xc1 no message"))


# -- twins -------------------------------------------------------------------------------------------------------------


def key_of(protected: Protected) -> str:
    return protected.twin_key(protected.holdings())


def test_ranks_that_hold_the_same_bytes_are_twins() -> None:
    one, two, other = Script(1), Script(1), Script(2)
    for script in (one, two, other):
        torch.manual_seed(5)
        script.train(2)
    assert key_of(one.protected) == key_of(two.protected)
    assert key_of(one.protected) != key_of(other.protected), "the same names and shapes are not enough"


def test_a_unit_is_a_parameter_with_its_optimizer_state() -> None:
    one, two = Script(1), Script(1)
    for script in (one, two):
        torch.manual_seed(5)
        script.train(2)
    change_moment(two)
    ours, theirs = one.protected.holdings(), two.protected.holdings()
    different = [unit for unit in ours if ours[unit] != theirs[unit]]
    assert len(different) == 1 and different[0].startswith("parameters/")


def test_buffers_of_replicas_may_differ() -> None:
    one, two = Script(1), Script(1)
    change_buffer(two)
    assert key_of(one.protected) == key_of(two.protected)


@pytest.mark.parametrize(
    "other",
    [
        Protected(modules={"model": nn.Linear(4, 5)}),
        Protected(modules={"model": nn.Linear(5, 4)}),
        Protected(modules={"model": nn.Linear(4, 4, bias=False)}),
        Protected(modules={"model": nn.Linear(4, 4).double()}),
        Protected(modules={"student": nn.Linear(4, 4)}),
        Protected(modules={"model": nn.Sequential(nn.Linear(4, 4))}),
        Protected(modules={"model": nn.Linear(4, 4)}, objects={"average": Average()}),
        Protected(modules={"model": nn.Linear(4, 4)}, save=lambda _: None, load=lambda _: None),
    ],
    ids=["out", "in", "bias", "type", "name", "path", "object", "functions"],
)
def test_other_shapes_types_or_names_are_no_twins(other: Protected) -> None:
    for model in (*other.modules.values(), ours := nn.Linear(4, 4)):
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    assert key_of(Protected(modules={"model": ours})) != key_of(other)


def writes(content: bytes) -> Protected:
    """A script that has named only its own functions."""
    return Protected(save=lambda path: path.write_bytes(content), load=lambda _: None)


def test_scripts_that_name_only_their_functions_are_compared_by_what_these_write() -> None:
    one, two, other = writes(b"one"), writes(b"one"), writes(b"two")
    assert one.saves_alone
    assert key_of(one) == key_of(two) != key_of(other)
    assert list(one.units()) == ["file/0"] == list(one.holdings())


def test_whoever_names_a_model_is_told_apart_by_it_alone() -> None:
    named = Protected(modules={"model": nn.Linear(4, 4)}, save=lambda _: None, load=lambda _: None)
    assert not named.saves_alone and "file/0" not in named.holdings()


@pytest.fixture
def fake_world() -> Iterator[Any]:
    """Enter a world of four as any of its ranks, without peers."""

    def enter(rank: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", rank=rank, world_size=4, store=HashStore())

    yield enter
    if dist.is_initialized():
        dist.destroy_process_group()


def test_shards_at_other_places_are_no_twins(fake_world: Any) -> None:
    keys = []
    for rank in range(4):
        fake_world(rank)
        names = (f"replicate{rank}", f"shard{rank}")  # torch caches equal meshes over worlds, with their coordinates
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
        model = nn.Linear(8, 8, bias=False)
        shard = DTensor.from_local(torch.zeros(4, 8), mesh, (Replicate(), Shard(0)), run_check=False)
        model.weight = nn.Parameter(shard)
        protected = Protected(modules={"model": model})
        keys.append(key_of(protected))
        assert protected.inventory().tensors["parameters/model/weight"].shape == (4, 8), "only the local part travels"
    assert keys[0] == keys[2] and keys[1] == keys[3]
    assert keys[0] != keys[1]


def test_what_is_carried_is_given_to_a_receiver_and_is_in_no_digest() -> None:
    class Loop:
        def __init__(self, record: bytes) -> None:
            self.record = record

        def state_dict(self) -> dict[str, object]:
            return {"record": self.record}

        def load_state_dict(self, state: dict[str, bytes]) -> None:
            self.record = state["record"]

    def protected(record: bytes) -> Protected:
        found = Protected(carried={"loop": Loop(record)})
        found.objects["best"] = Loop(b"the same")
        return found

    giver, taker = protected(b"of rank 1"), protected(b"")
    assert giver.digest_extras() == taker.digest_extras() and giver.twin_key({}) == taker.twin_key({})
    taker.install(giver.inventory())
    assert taker.carried["loop"].state_dict() == {"record": b"of rank 1"}
    assert giver.changed_beside_optimizers() == ["best"]
    older = Protected(objects={"best": Loop(b"")})  # another version, which does not know of it
    older.install(giver.inventory())
    assert older.objects["best"].state_dict() == {"record": b"the same"} and older.carried == {}
