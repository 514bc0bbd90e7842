"""A slot on another host equals the owner's, byte by byte; whatever cuts it short leaves no copy and nobody waiting."""

import errno
import os
import queue
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.state.test_snapshots import digest, of_rank, save, trained

from understudy.errors import TransferError
from understudy.state.peer_memory import replication
from understudy.state.peer_memory.replication import (
    copies_on_this_host,
    forget_copies_after,
    keep_copies,
    remove_copies,
    send_copy,
)
from understudy.state.peer_memory.snapshots import NEWEST, Slot, bring_back, older, slots_of
from understudy.state.transfer.p2p import Channel
from understudy.state.transfer.sender import Sender


class _Arriving:
    def __init__(self, line: "Line", into: torch.Tensor) -> None:
        self._line, self._into = line, into

    def wait(self) -> None:
        message = self._line.incoming.get(timeout=60)
        if message is None:
            self._line.incoming.put(None)
            raise RuntimeError("connection closed")
        self._into.copy_(message)


class Line:
    """One end of a connection of two, in memory. `breaks_after`: so many messages."""

    def __init__(self, incoming: "queue.Queue[Any]", outgoing: "queue.Queue[Any]", breaks_after: int = 10**9) -> None:
        self.incoming, self._outgoing, self._left = incoming, outgoing, breaks_after

    def send(self, message: torch.Tensor, _to: int, /) -> None:
        self._left -= 1
        if self._left >= 0:
            self._outgoing.put(message.clone())
        else:
            self.cut()

    def receive(self, into: torch.Tensor, _sender: int, /) -> _Arriving:
        return _Arriving(self, into)

    def cut(self) -> None:
        self._outgoing.put(None)
        self.incoming.put(None)


class Between:
    """An owner here, and the thread of a keeper with a folder of its own."""

    def __init__(self, folder: Path, breaks_after: int = 10**9) -> None:
        there: queue.Queue[Any] = queue.Queue()
        back: queue.Queue[Any] = queue.Queue()
        self.line = Line(back, there, breaks_after)
        self.channel, self.folder = Channel(self.line), folder
        keeper = Channel(Line(there, back))
        self.thread = threading.Thread(target=self._keep, args=(keeper,), daemon=True)
        self.thread.start()

    def _keep(self, channel: Channel) -> None:
        with pytest.raises(RuntimeError, match="closed"):
            keep_copies(channel, 0, slots_of(str(self.folder), 1, 0)[:NEWEST])

    def end(self) -> None:
        self.line.cut()
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    return own, other


def saved_slot(folder: Path, step: int) -> Slot:
    snapshots = of_rank(folder)
    save(snapshots, trained(step), step)
    return next(slot for slot in snapshots.slots if slot.step() == step)


@pytest.mark.parametrize("chunk", [64, 1000, 1 << 20])
def test_the_copy_is_equal_and_brings_the_state_back(
    places: tuple[Path, Path], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "_CHUNK", chunk)
    own, other = places
    between = Between(other)
    for step in (3, 4, 5):
        slot = saved_slot(own, step)
        assert send_copy(between.channel, 1, slot) > 0
        assert send_copy(between.channel, 1, slot) == 0  # it is there already
    between.end()
    assert of_rank(other).steps() == (4, 5)
    target = trained(1)
    bring_back(target, of_rank(other).read(5))
    assert digest(target) == digest(trained(5))
    assert set(copies_on_this_host(str(other), 1, but_of=1)) == {(0, 4), (0, 5)}
    assert copies_on_this_host(str(other), 1, but_of=0) == ()


@pytest.mark.parametrize("messages", [0, 1, 2, 4])
def test_a_copy_that_is_cut_short_is_none_and_the_former_one_stays(
    places: tuple[Path, Path], messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "_CHUNK", 256)
    own, other = places
    first = Between(other)
    send_copy(first.channel, 1, saved_slot(own, 1))
    first.end()
    second = Between(other, breaks_after=messages)
    with pytest.raises(RuntimeError):
        send_copy(second.channel, 1, saved_slot(own, 2))
    second.end()
    assert of_rank(other).steps() == (1,)


def test_no_memory_is_said(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = places
    slot = saved_slot(own, 1)
    between = Between(other)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(TransferError, match="no memory"):
            send_copy(between.channel, 1, slot)
    assert send_copy(between.channel, 1, slot) > 0  # it is asked again next time
    between.end()


def test_damage_on_the_way_is_noticed(places: tuple[Path, Path]) -> None:
    own, other = places
    slot = saved_slot(own, 1)
    header, room = slot.header(), older(slots_of(str(other), 1, 0))
    assert header is not None
    content = slot.content().clone()
    content[0] ^= 1
    room.make_room(header).copy_(content)
    with pytest.raises(TransferError, match="damaged"):
        room.seal(header)
    assert room.step() is None
    with pytest.raises(TransferError, match="not the header"):
        room.make_room(bytes(len(header)))


def test_copies_of_later_states_are_void_and_unwanted_ones_removed(places: tuple[Path, Path]) -> None:
    _, other = places
    for rank in (0, 1, 2):
        save(of_rank(other, rank=rank), trained(1), 5)
        save(of_rank(other, rank=rank), trained(2), 6)
    forget_copies_after(str(other), 1, 5)
    assert copies_on_this_host(str(other), 1, but_of=2) == ((0, 5), (1, 5))
    remove_copies(str(other), 1, but_of={1})
    assert copies_on_this_host(str(other), 1, but_of=2) == ((1, 5),)


def test_a_copy_can_be_given(places: tuple[Path, Path]) -> None:
    own, _ = places
    save(of_rank(own), trained(3), 3)
    outgoing = Sender(of_rank(own).read(3))
    assert outgoing.inventory.tensors.keys() == trained(3).inventory().tensors.keys()
