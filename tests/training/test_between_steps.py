"""Collectives between two steps: told of once, kept, told to others, and repeated after a recovery."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from understudy.foundation.ids import Rank
from understudy.protocol.commands import Tail
from understudy.training.recovery import between_steps, tail
from understudy.training.recovery.between_steps import BetweenSteps
from understudy.training.recovery.tail import Result, TailResults

NO_CHANNEL: Any = None


class StandIn:
    """A member that loses contact when a test says so."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.recoveries = 0
        status: Any = SimpleNamespace(
            between_steps=True, in_section=False, abandoned=False, go_on_between_steps=self._go_on_between_steps
        )
        self.status = status
        contact: Any = SimpleNamespace(
            lost=lambda: self.status.abandoned, await_word=lambda _why: None, look_at=lambda _error: None
        )
        recovery: Any = SimpleNamespace(recover=self._recover)
        self.tail = TailResults(self.said.append)
        BetweenSteps(status=status, contact=contact, tail=self.tail, recovery=recovery, note=self.said.append).install()

    def _recover(self) -> None:
        assert self.tail.waiting
        self.recoveries += 1
        self.status.abandoned = False

    def _go_on_between_steps(self) -> None:
        self.status.between_steps = True


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """In a world of one, in which nothing that is wrapped stays so."""
    for name in between_steps._METHODS:
        monkeypatch.setattr(dist.ProcessGroup, name, getattr(dist.ProcessGroup, name))
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield StandIn()
    dist.destroy_process_group()


def test_while_a_recovery_lasts_in_a_committed_step_what_follows_it_comes_next_if_anything_does() -> None:
    tail = TailResults(lambda _: None)
    with tail.is_ahead():
        assert tail.ahead and not tail.comes_next
        tail.expected = True
        assert tail.comes_next
    assert not tail.comes_next
    with tail.is_ahead(truly=False):
        assert not tail.comes_next
    tail.waiting = True
    assert tail.comes_next


def test_the_first_one_is_told_of_with_its_line_and_no_other(member: StandIn) -> None:
    one = torch.ones(1)
    member.status.between_steps = False
    dist.all_reduce(one)
    assert member.said == [] and member.tail.done == 0, "in a step"
    member.status.between_steps = True
    dist.all_reduce(one)
    dist.barrier()
    assert len(member.said) == 1 and len(member.tail._results) == 2
    assert "communicates between steps (allreduce, called from test_between_steps.py:" in member.said[0]


@pytest.mark.parametrize(
    "communicate",
    [
        lambda x: dist.broadcast(x, 0),
        lambda x: dist.all_gather([x.clone()], x),
        lambda x: dist.all_gather_into_tensor(x.clone(), x),
        lambda x: dist.reduce(x, 0),
        lambda _: dist.barrier(),
        lambda x: dist.all_reduce(x, async_op=True).wait(),
    ],
)
def test_every_kind_is_seen(member: StandIn, communicate: Callable[[Any], Any]) -> None:
    communicate(torch.ones(1))
    assert member.tail.done == 1


def test_one_that_is_cut_short_is_issued_again_after_the_recovery_with_what_it_was_given(member: StandIn) -> None:
    member.status.abandoned = True
    numbers = torch.tensor([1.5, 2.5])
    dist.all_reduce(numbers)
    assert member.recoveries == 1 and member.tail.done == 1 and not member.tail.waiting
    assert numbers.tolist() == [1.5, 2.5]


def test_what_others_have_completed_is_told_and_not_issued(member: StandIn) -> None:
    told = [Result([torch.tensor([7.0]).numpy().tobytes()]), Result(None)]
    member.tail._foretold.extend(told)
    one, two, three = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    dist.all_reduce(one)
    dist.all_reduce(two)
    dist.all_reduce(three)
    assert one.item() == 7.0 and two.isnan().all() and three.item() == 0.0 and member.tail.done == 3
    assert "is not known to this rank" in member.said[-1]


def test_the_input_of_a_gathering_is_left_alone(member: StandIn) -> None:
    member.tail._foretold.append(Result([torch.tensor([7.0]).numpy().tobytes()]))
    own, gathered = torch.tensor([3.0]), [torch.zeros(1)]
    dist.all_gather(gathered, own)
    assert own.item() == 3.0 and gathered[0].item() == 7.0


def test_results_are_void_until_the_next_step_when_the_world_has_gone_back(member: StandIn) -> None:
    tail = member.tail
    tail.waiting = True
    tail.exchange(None, NO_CHANNEL, 0, received=False)
    tail.waiting = False
    one = torch.ones(1)
    dist.all_reduce(one)
    assert one.isnan().all() and "gone back" in member.said[-1]
    tail.begin_step()
    one = torch.ones(1)
    dist.all_reduce(one)
    assert one.item() == 1.0


def test_results_go_to_those_who_lack_them_and_a_receiver_of_state_begins_anew(member: StandIn) -> None:
    dist.all_reduce(torch.tensor([4.0]))
    posted: dict[int, bytes] = {}
    channel: Any = SimpleNamespace(
        send_bytes=lambda text, to: posted.update({to: text}),
        await_ack=lambda _sender, in_flight: None,  # noqa: ARG005
        receive_bytes=lambda _: posted[2],
        ack=lambda _: None,
    )
    member.tail.exchange(Tail(done=1, donor=Rank(0), lacking=(Rank(2),)), channel, 0, received=False)
    member.tail.exchange(Tail(done=1, donor=Rank(0), lacking=(Rank(2),)), channel, 2, received=True)
    assert member.tail.done == 0
    four = torch.zeros(1)
    dist.all_reduce(four)
    assert four.item() == 4.0 and member.tail.done == 1


def test_what_is_too_large_is_not_kept(member: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_MOST_KEPT", 10)
    dist.all_reduce(torch.ones(2))
    dist.all_reduce(torch.ones(2))
    assert [result.tensors is None for result in member.tail._results] == [False, True]
    member.tail.begin()
    assert member.tail.done == 0
