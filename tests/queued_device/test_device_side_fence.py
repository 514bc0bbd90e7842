"""The device-side fence on the queued device: two ranks in one process, each with a queue of its own."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from tests.queued_device.ranks import SOON, STANDS, RankOfOne, World, every_byte, in_all, world

from understudy.devices.deciding import DecidingDevice
from understudy.foundation.ids import Generation, StepNumber
from understudy.groups.device_side_fence import DeviceSideFence, Flag, nonce_of
from understudy.training.running_ahead import Armed, objection_of
from understudy_testkit.queued_device import plugins
from understudy_testkit.queued_device.plugins import EmulatedDevice

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
FUSED: dict[str, Make] = {
    "AdamW": partial(torch.optim.AdamW, lr=0.1, fused=True),
    "Adam": partial(torch.optim.Adam, lr=0.1, fused=True),
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1, fused=True),
}
GENERATION = Generation(3)


class Rank:
    """One that trains: a parameter, its gradient by a sum over both, and a fence."""

    def __init__(self, rank: RankOfOne, make: Make) -> None:
        self.rank, self.device, self.make = rank, rank.device, make
        with self.device.used():
            self.weight = torch.nn.Parameter(torch.zeros(4))
            self.optimizer = make([self.weight])
        with ours(rank):
            self.fence = DeviceSideFence(EmulatedDevice(), 2, lambda tensor: rank.backend.allreduce([tensor]))
        self.fence.begin(GENERATION)
        self.abort_hook()

    def abort_hook(self) -> None:
        self.rank.backend.register_abort_hook(1, self.fence.before_abort)

    def launch(self, step: int) -> Flag:
        """All of a step: the host waits for nothing."""
        with ours(self.rank), self.device.used():
            self.weight.grad = torch.full((4,), 1.0)
            self.rank.backend.allreduce([self.weight.grad])
            flag = self.fence.queue(StepNumber(step))
            self.armed = Armed(self.optimizer, flag)
            self.optimizer.step()
            self.armed.release()
        return flag

    def content(self) -> list[float]:
        tensors = [self.weight.detach(), *self.optimizer.state[self.weight].values()]
        return [number for tensor in tensors for number in self.device.fetch(tensor).reshape(-1).tolist()]


_ONE_AT_A_TIME = threading.RLock()


class ours:
    """The plugin's device is this rank's: there are two in this process."""

    def __init__(self, rank: RankOfOne) -> None:
        self._rank = rank

    def __enter__(self) -> None:
        _ONE_AT_A_TIME.acquire()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(plugins, "installed", lambda: self._rank.device)

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        _ONE_AT_A_TIME.release()


@pytest.fixture(params=FUSED, ids=str)
def two(request: pytest.FixtureRequest) -> Iterator[tuple[World, list[Rank]]]:
    """Established: a first step is behind them."""
    with world() as made:
        ranks = [Rank(rank, FUSED[request.param]) for rank in made.ranks]
        flags = [rank.launch(0) for rank in ranks]
        settle(ranks)
        assert all(flag.is_good() for flag in flags)
        yield made, ranks


def settle(ranks: list[Rank]) -> None:
    for rank in ranks:
        assert rank.device.drain(SOON)


def test_a_device_of_ours_can_decide() -> None:
    assert isinstance(EmulatedDevice(), DecidingDevice)


def test_with_all_ranks_whole_every_step_is_applied_as_without_a_fence(two: tuple[World, list[Rank]]) -> None:
    _, ranks = two
    flags = [rank.launch(step) for step in (1, 2, 3) for rank in ranks]
    settle(ranks)
    assert all(flag.is_known() and flag.is_good() for flag in flags)
    weight = torch.nn.Parameter(torch.zeros(4))
    plain = ranks[0].make([weight])
    for _ in range(4):
        weight.grad = torch.full((4,), 2.0)
        plain.step()
    assert ranks[0].content() == ranks[1].content()
    assert torch.equal(ranks[0].device.fetch(ranks[0].weight.detach()), weight.detach())


def test_the_host_goes_past_the_fence_while_its_queue_stands_before_it(two: tuple[World, list[Rank]]) -> None:
    _, ranks = two
    with ranks[0].device.held():
        flag = ranks[0].launch(1)
        other = ranks[1].launch(1)
        assert not ranks[1].device.drain(STANDS), "it waits for rank 0, and for its host nothing waits"
        assert not flag.is_known() and not other.is_known()
    settle(ranks)
    assert flag.is_good() and other.is_good()


def test_a_peer_that_breaks_off_its_gradients_spoils_ours_and_no_state(two: tuple[World, list[Rank]]) -> None:
    """Contagion: rank 1 aborts while its queue stands in front of the sum, and rank 0 gets garbage without an error."""
    _, ranks = two
    before = [rank.content() for rank in ranks]
    with ranks[1].device.held():
        flags = [rank.launch(1) for rank in ranks]
        ranks[1].rank.backend.abort()
    settle(ranks)
    assert ranks[0].weight.grad is not None
    assert every_byte(ranks[0].device.fetch(ranks[0].weight.grad), 0x4B), "it was to be garbage, and no error"
    assert [flag.is_good() for flag in flags] == [False, False]
    assert [rank.content() for rank in ranks] == before


def test_garbage_in_our_own_gradients_changes_no_state(two: tuple[World, list[Rank]]) -> None:
    _, ranks = two
    before = ranks[0].content()
    flag = ranks[0].launch(1)  # rank 1 never comes
    assert not ranks[0].device.drain(STANDS)
    ranks[0].rank.backend.abort()
    settle(ranks)
    assert ranks[0].weight.grad is not None
    assert every_byte(ranks[0].device.fetch(ranks[0].weight.grad), 0x5A), "it was to be garbage"
    assert not flag.is_good() and ranks[0].content() == before


def test_the_word_is_read_when_the_device_comes_there(two: tuple[World, list[Rank]]) -> None:
    _, ranks = two
    before = [rank.content() for rank in ranks]
    with ranks[0].device.held(), ranks[1].device.held():
        flags = [rank.launch(1) for rank in ranks]
        ranks[1].fence.before_abort()
    settle(ranks)
    assert [flag.is_good() for flag in flags] == [False, False]
    assert [rank.content() for rank in ranks] == before


def test_a_word_of_an_older_generation_does_no_harm(two: tuple[World, list[Rank]]) -> None:
    _, ranks = two
    ranks[0].fence.before_abort()
    for rank in ranks:
        rank.fence.begin(Generation(GENERATION + 1))
    flags = [rank.launch(1) for rank in ranks]
    settle(ranks)
    assert all(flag.is_good() for flag in flags)


def test_ranks_that_are_in_different_steps_apply_nothing(two: tuple[World, list[Rank]]) -> None:
    _, ranks = two
    before = [rank.content() for rank in ranks]
    flags = [ranks[0].launch(1), ranks[1].launch(2)]
    settle(ranks)
    assert not any(flag.is_good() for flag in flags)
    assert [rank.content() for rank in ranks] == before


def test_a_step_that_a_scaler_skips_is_skipped_once_and_counts(two: tuple[World, list[Rank]]) -> None:
    """Both flags at once are 1 and not 2: optimizers look for exactly 1."""
    _, ranks = two
    before = [rank.content() for rank in ranks]

    def launch(rank: Rank, scaler: float) -> torch.Tensor:
        with rank.device.used():
            rank.optimizer.found_inf = torch.full((), scaler)  # type: ignore[attr-defined]
        flag = rank.launch(1)
        assert float(rank.device.fetch(rank.optimizer.found_inf)) == scaler  # type: ignore[attr-defined]
        del rank.optimizer.found_inf  # type: ignore[attr-defined]
        return flag.bad

    flags: list[torch.Tensor] = []
    for poisoned in (False, True):
        if poisoned:
            ranks[0].fence.before_abort()
        flags += in_order(ranks, partial(launch, scaler=1.0))
        settle(ranks)
    assert [float(ranks[0].device.fetch(flags[place])) for place in (0, 2)] == [0.0, 1.0]
    assert [rank.content() for rank in ranks] == before


def in_order(ranks: list[Rank], launch: "partial[torch.Tensor]") -> list[torch.Tensor]:
    """Each in a thread of its own: what one fetches waits for the other."""
    found: dict[int, torch.Tensor] = {}
    in_all([partial(lambda place: found.update({place: launch(ranks[place])}), place) for place in range(2)])
    return [found[place] for place in range(2)]


def test_momentum_that_a_skipped_first_step_has_made_is_forgotten() -> None:
    with world() as made:
        ranks = [Rank(rank, FUSED["SGD"]) for rank in made.ranks]
        ranks[0].fence.before_abort()
        flags = [rank.launch(0) for rank in ranks]
        settle(ranks)
        assert not any(flag.is_good() for flag in flags)
        for rank in ranks:
            assert rank.weight in rank.optimizer.state
            rank.armed.forget_new_state()
            assert rank.weight not in rank.optimizer.state


def test_nonces_belong_to_one_step_of_one_generation() -> None:
    nonces = {nonce_of(generation, step) for generation in range(50) for step in range(200)}
    assert len(nonces) == 50 * 200
    assert all(nonce % 2 for nonce in nonces) and max(nonces) * 2**17 < 2**63


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (partial(torch.optim.AdamW, fused=True), None),
        (partial(torch.optim.AdamW), "is not fused"),
        (partial(torch.optim.SGD, lr=0.1, foreach=True), "is not fused"),
        (partial(torch.optim.RMSprop), "is a RMSprop"),
    ],
)
def test_optimizers_that_would_not_listen_are_refused(make: Make, says: str | None) -> None:
    objection = objection_of({"optimizer": make([torch.nn.Parameter(torch.zeros(2))])})
    assert (objection is None) if says is None else (objection is not None and says in objection)


def test_there_must_be_an_optimizer() -> None:
    assert objection_of({}) is not None
