"""What a rank heard in its setup is heard again by its replacement, alone in its sandbox."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # makes the fake backend known
from torch._C._distributed_c10d import HashStore

from understudy.groups.setup_replay import Recorder, Recording, Replayer


@pytest.fixture
def enter() -> Iterator[Callable[[str], dist.ProcessGroup]]:
    """A world of one, on a backend of the test's choice."""

    def begin(backend: str) -> dist.ProcessGroup:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group(backend, rank=0, world_size=1, store=HashStore())
        group = dist.group.WORLD
        assert group is not None
        return group

    yield begin
    if dist.is_initialized():
        dist.destroy_process_group()


def told(recording: Recording) -> Replayer:
    """A replayer with a recording that has travelled."""
    return Replayer(msgspec.msgpack.decode(msgspec.msgpack.encode(recording), type=Recording))


def talk(value: float, word: str) -> list[Any]:
    """A setup that talks. What it hears is what it says itself, as its world is one of one."""
    seed = torch.tensor([value])
    dist.broadcast(seed, 0)
    heard = seed.item()
    seed += 100  # a recording may change what it heard
    everybody = [torch.zeros(3)]
    dist.all_gather(everybody, torch.full((3,), value))
    words: list[Any] = [None]
    dist.all_gather_object(words, word)
    summed = torch.full((2,), value)
    work = dist.all_reduce(summed, async_op=True)
    assert work is not None
    work.wait()
    dist.barrier()
    return [heard, everybody[0].tolist(), words, summed.tolist()]


def test_a_joiner_hears_what_its_rank_heard(enter: Callable[[str], dist.ProcessGroup]) -> None:
    recorder = Recorder()
    recorder.attend("0", enter("gloo"))
    heard = talk(7.0, "tragedy")
    recording = recorder.finish()
    told(recording).attend("0", enter("fake"))
    assert talk(1.0, "comedy!") == heard == [7.0, [7.0, 7.0, 7.0], ["tragedy"], [7.0, 7.0]]


def test_nothing_is_recorded_after_the_end(enter: Callable[[str], dist.ProcessGroup]) -> None:
    recorder = Recorder()
    recorder.attend("0", enter("gloo"))
    dist.broadcast(torch.tensor([1.0]), 0)
    recording = recorder.finish()
    dist.broadcast(torch.tensor([2.0]), 0)
    assert [len(lines) for lines in recording.values()] == [1]


def test_large_messages_keep_their_place_but_not_their_bytes(enter: Callable[[str], dist.ProcessGroup]) -> None:
    recorder = Recorder()
    recorder.attend("0", enter("gloo"))
    dist.broadcast(torch.ones(100_000), 0)
    dist.broadcast(torch.tensor([5.0]), 0)
    recording = recorder.finish()
    assert recording["0"][0].heard == [None]
    told(recording).attend("0", enter("fake"))
    large, small = torch.zeros(100_000), torch.zeros(1)
    dist.broadcast(large, 0)
    dist.broadcast(small, 0)
    assert not large.any() and small.item() == 5.0


def test_another_play_is_not_prompted(enter: Callable[[str], dist.ProcessGroup]) -> None:
    recorder = Recorder()
    recorder.attend("0", enter("gloo"))
    dist.broadcast(torch.tensor([5.0]), 0)
    dist.broadcast(torch.tensor([6.0]), 0)
    recording = recorder.finish()
    told(recording).attend("0", enter("fake"))
    other, same = torch.zeros(1), torch.zeros(1)
    dist.all_reduce(other)
    dist.broadcast(same, 0)
    assert other.item() == 0.0 and same.item() == 0.0


def test_a_replayer_without_a_recording_says_nothing(enter: Callable[[str], dist.ProcessGroup]) -> None:
    Replayer({}).attend("0", enter("fake"))
    value = torch.tensor([3.0])
    dist.broadcast(value, 0)
    assert value.item() == 3.0
