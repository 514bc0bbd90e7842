"""The queue under torch's dispatcher, in one process without groups."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from understudy_testkit.queued_device import DataRace, DeviceFault, QueuedDevice, QueueStands
from understudy_testkit.queued_device.stream import LAUNCHES
from understudy_testkit.queued_device.travel import GIVEN_BACK

SOON = 10.0
STANDS = 0.2
MakeOptimizer = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]


@pytest.fixture
def device() -> Iterator[QueuedDevice]:
    made = QueuedDevice()
    made.watch()
    yield made
    made.unwatch()
    made.close()


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.LayerNorm(32), nn.Unflatten(1, (2, 4, 4)),
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip


def train(make: MakeOptimizer, steps: int = 4) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model = network()
    optimizer = make(model.parameters())
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*model.state_dict().values(), *losses]


def fused(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, fused=True)


def same(device: QueuedDevice, computed: list[torch.Tensor], plain: list[torch.Tensor]) -> bool:
    return all(torch.equal(device.fetch(one), other) for one, other in zip(computed, plain, strict=True))


@pytest.mark.parametrize(
    "make",
    [
        fused,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
        lambda parameters: torch.optim.AdamW(parameters, foreach=True),
        lambda parameters: torch.optim.AdamW(parameters, foreach=False),  # asks for `step` on the host, and waits
    ],
    ids=["fused AdamW", "fused SGD", "foreach AdamW", "plain AdamW"],
)
def test_training_is_bit_identical(device: QueuedDevice, make: MakeOptimizer) -> None:
    plain = train(make)
    with device.used():
        computed = train(make)
    assert same(device, computed, plain)


@pytest.mark.parametrize("threads", [1, 2])
def test_sums_go_by_the_number_of_threads_of_the_host(device: QueuedDevice, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(0)
        plain = torch.randn(300_000).sum()
        with device.used():
            torch.manual_seed(0)
            computed = torch.randn(300_000).sum()
            seen: list[int] = []
            device.stream.add(lambda: seen.append(torch.get_num_threads()))
        assert torch.equal(device.fetch(computed), plain) and seen == [threads]
    finally:
        torch.set_num_threads(before)


def test_the_host_runs_whole_steps_while_the_queue_stands(device: QueuedDevice) -> None:
    plain = train(fused)
    with device.used():
        with device.held():
            computed = train(fused)  # forward, backward with dropout, clipping and optimizer, four times
            assert not device.drain(STANDS)
            assert device.stream.behind > 200
        assert same(device, computed, plain)


def test_a_host_that_is_too_far_ahead_waits(device: QueuedDevice) -> None:
    def launch() -> None:
        for _ in range(LAUNCHES + 1):
            device.stream.add(lambda: None)

    with device.held():
        thread = threading.Thread(target=launch, daemon=True)
        thread.start()
        thread.join(STANDS)
        assert thread.is_alive() and device.stream.behind <= LAUNCHES
    thread.join(SOON)
    assert not thread.is_alive()


def test_backward_and_double_backward_are_queued(device: QueuedDevice) -> None:
    with device.used(), device.held():
        weight = torch.full((3,), 2.0, requires_grad=True)
        done = device.stream.done
        (slope,) = torch.autograd.grad((weight**3).sum(), weight, create_graph=True)
        slope.sum().backward()  # type: ignore[no-untyped-call]
        assert device.stream.done == done and weight.grad is not None
    assert device.fetch(weight.grad).tolist() == [12.0] * 3


def test_events(device: QueuedDevice) -> None:
    with device.used():
        with device.held():
            number = torch.ones(2) + 1
            event = device.record_event()
            assert not device.query(event) and not device.drain(STANDS)
            with pytest.raises(QueueStands):
                event.synchronize(STANDS)
        event.synchronize(SOON)
        assert device.query(event) and number.tolist() == [2.0, 2.0]
    assert device.probe()


def test_a_probe_of_a_queue_that_stands_fails(device: QueuedDevice) -> None:
    with device.held():
        assert not device.probe(STANDS)


def test_the_queue_can_be_slowed(device: QueuedDevice) -> None:
    with device.used(), device.slowed(0.05):
        begun = time.monotonic()
        number = torch.ones(2)
        for _ in range(5):
            number = number + 1
        assert number.sum().item() == 12.0
    assert time.monotonic() - begun > 0.2


def test_a_failure_in_the_queue_is_final(device: QueuedDevice) -> None:
    with device.used():
        torch.ones(2) + 1

        def fail() -> None:
            raise ValueError("out of order")

        device.stream.add(fail)
        for _ in range(2):
            with pytest.raises(DeviceFault, match="out of order"):
                device.drain(SOON)
        with pytest.raises(DeviceFault):
            torch.ones(2).add(1).item()


def test_a_wrong_shape_is_an_error_of_the_host(device: QueuedDevice) -> None:
    with device.used():
        with pytest.raises(RuntimeError, match="shape"):
            torch.ones(2, 3) @ torch.ones(2, 3)
        assert device.probe()


# -- what needs what is computed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask",
    [
        lambda tensor: tensor.sum().item(),
        lambda tensor: bool((tensor > 0).all()),
        lambda tensor: torch.equal(tensor, tensor + 0),
        lambda tensor: tensor.nonzero().shape[0],
        lambda tensor: tensor[tensor > 1.5].shape[0],
        lambda tensor: torch.unique(tensor).shape[0],
        lambda tensor: torch.bernoulli(tensor / 4).shape[0],
        lambda tensor: tensor.cpu().tolist(),
    ],
)
def test_it_waits_for_the_queue(device: QueuedDevice, ask: Callable[[torch.Tensor], object]) -> None:
    given = torch.tensor([1.0, 2.0, 3.0])
    plain = ask(given + 1)
    with device.used():
        tensor = device.bring(given)
        with device.slowed(0.05):
            assert ask(tensor + 1) == plain


def test_single_numbers_are_waited_for_by_other_threads_too(device: QueuedDevice) -> None:
    with device.used(), device.slowed(0.1):
        tensor = torch.zeros(1) + 5
        got: list[float] = []
        thread = threading.Thread(target=lambda: got.append(tensor.item()))
        thread.start()
        thread.join(SOON)
    assert got == [5.0]


def test_other_threads_see_memory_as_it_is(device: QueuedDevice) -> None:
    """That is the danger of a copy by a thread that does not wait."""
    with device.used():
        tensor = torch.zeros(2)
        with device.held():
            tensor.add_(7)
            copies: list[torch.Tensor] = []
            thread = threading.Thread(target=lambda: copies.append(tensor.clone()))
            thread.start()
            thread.join(SOON)
    assert copies[0].tolist() == [0.0, 0.0]
    assert device.fetch(tensor).tolist() == [7.0, 7.0]


@pytest.mark.parametrize("read", ["numpy", "tolist", "data_ptr"])
def test_reading_around_the_queue_raises(device: QueuedDevice, read: str) -> None:
    with device.used():
        with device.held():
            tensor = torch.zeros(2, 2) + 1
            with pytest.raises(DataRace, match=read):
                getattr(tensor[0], read)()
        assert device.drain(SOON)
        getattr(tensor[0], read)()


def test_a_list_that_torch_itself_makes_waits(device: QueuedDevice) -> None:
    """As for the ranks of a device mesh, or the places of a shard."""
    of_torch: dict[str, Any] = {"__name__": "torch.distributed.made_up"}
    exec("def listed(tensor): return tensor.tolist()", of_torch)
    with device.used(), device.slowed(0.05):
        assert of_torch["listed"](torch.zeros(2) + 1) == [1.0, 1.0]


def test_in_place_writes_are_races_too(device: QueuedDevice) -> None:
    with device.used():
        tensor = torch.zeros(4)
        part = tensor[1:3]
        with device.held():
            part.fill_(1.0)
            torch._foreach_add_([tensor], 1.0)
            with pytest.raises(DataRace):
                tensor.tolist()
    assert device.fetch(tensor).tolist() == [1.0, 2.0, 2.0, 1.0]


def test_saving_and_copying_wait(device: QueuedDevice, tmp_path: object) -> None:
    import copy

    with device.used(), device.slowed(0.05):
        tensor = torch.zeros(2) + 1
        assert device.fetch(copy.deepcopy(tensor)).tolist() == [1.0, 1.0]
        tensor.add_(1)
        torch.save(tensor, f"{tmp_path}/saved.pt")
    assert torch.load(f"{tmp_path}/saved.pt").tolist() == [2.0, 2.0]


# -- memory ------------------------------------------------------------------------------------------------------------


def test_the_host_may_change_what_it_has_given(device: QueuedDevice) -> None:
    with device.used():
        parameter = nn.Parameter(torch.zeros(2))
        with device.held():
            doubled = parameter.detach() * 2 + 1
            parameter.data = torch.full((5,), 9.0)  # before the queue has come to the product
            batch = torch.from_numpy(torch.ones(2).numpy().copy())
            brought = batch.to("cpu")
            batch.zero_()
    assert device.fetch(doubled).tolist() == [1.0, 1.0]
    assert device.fetch(brought).tolist() == [1.0, 1.0]


def test_tensors_of_host_and_device_do_not_mix(device: QueuedDevice) -> None:
    of_host = torch.ones(3)
    with device.used():
        of_device = torch.ones(3)
        with pytest.raises(RuntimeError, match="is the host's"):
            of_host + of_device
        assert not device.memory.holds(of_host * 2)  # the device has nothing to do with it
        assert device.memory.holds(of_device[1:])
        of_device.copy_(of_host * 5)
        assert (of_device * torch.tensor(2.0)).tolist is not None
        of_host.copy_(of_device)  # waits
        assert of_host.tolist() == [5.0] * 3


def test_a_model_is_brought(device: QueuedDevice) -> None:
    model = network()
    with device.used():
        assert all(map(device.memory.holds, model.to("cpu").state_dict().values()))
        model(torch.randn(2, 16)).sum().backward()
        assert all(device.memory.holds(each.grad) for each in model.parameters() if each.grad is not None)


def test_memory_that_is_given_back_is_spoilt_in_the_order_of_the_queue(device: QueuedDevice) -> None:
    with device.used():
        tensor = torch.ones(4)
        with device.held():
            before = tensor * 3
            tensor.untyped_storage().resize_(0)
            after = tensor * 1
        assert device.fetch(before).tolist() == [3.0] * 4
        assert bool((device.fetch(after).view(torch.uint8) == GIVEN_BACK).all())


class Squares(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.full((2,), float(place)) ** 2


@pytest.mark.processes
def test_a_worker_of_a_loader_has_no_queue(device: QueuedDevice) -> None:
    with device.used():
        batches = [batch.to("cpu") + 0 for batch in DataLoader(Squares(), batch_size=4, num_workers=1)]
    assert [device.fetch(batch)[:, 0].tolist() for batch in batches] == [[0.0, 1.0, 4.0, 9.0], [16.0, 25.0, 36.0, 49.0]]


def test_everything_is_taken_back() -> None:
    before = (torch.Tensor.numpy, torch.Tensor.to, torch.save, torch.UntypedStorage.resize_)
    made = QueuedDevice()
    made.watch()
    assert torch.save is not before[2]
    made.unwatch()
    made.close()
    assert (torch.Tensor.numpy, torch.Tensor.to, torch.save, torch.UntypedStorage.resize_) == before
    assert "numpy" not in vars(torch.Tensor)
