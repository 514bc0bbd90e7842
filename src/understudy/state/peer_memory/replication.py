"""Copies of a rank's state on another host: the owner sends a slot, its buddy writes one that is equal byte by byte.

    owner: header ─▶          ◀─ buddy: send it | I have it | I cannot
    owner: chunk, chunk, ... ─▶          ◀─ buddy: an acknowledgement of each
                              ◀─ buddy: it is whole | it is not

Nothing is copied on the way: chunks leave from the owner's slot and land in the buddy's, and few are in flight at a
time. Each side runs in a thread of its own, over a connection that nothing else uses, and no side waits for a send
(`transfer.p2p`). When the connection breaks both sides raise, and the buddy's slot stays empty.
"""

from collections import deque
from collections.abc import Collection
from pathlib import Path

import torch

from understudy.errors import TransferError
from understudy.state.peer_memory.snapshots import HEADER_SIZE, Slot, clear_after, older, slots_of
from understudy.state.transfer.p2p import Channel, PendingReceive

_CHUNK = 8 << 20  # bytes
_IN_FLIGHT = 2  # chunks
_SEND_IT, _HAVE_IT, _CANNOT = 1, 2, 3
_WHOLE, _NOT_WHOLE = 1, 2


def send_copy(channel: Channel, buddy: int, slot: Slot) -> int:
    """Returns how many bytes went. TransferError when the buddy has no use for it; RuntimeError when contact is
    lost."""
    header = slot.header()
    if header is None:
        raise TransferError("there is no whole copy to send")
    channel.begin()
    channel.send(torch.frombuffer(bytearray(header), dtype=torch.uint8), buddy)
    answer = _hear(channel, buddy)
    if answer == _HAVE_IT:
        return 0
    if answer != _SEND_IT:
        raise TransferError(f"rank {buddy} has no memory for a copy")
    content = slot.content()
    chunks = _chunks(content)
    for number, chunk in enumerate(chunks):
        channel.send(chunk, buddy)
        if number >= _IN_FLIGHT:
            channel.await_ack(buddy, _IN_FLIGHT)
    for left in range(min(_IN_FLIGHT, len(chunks)), 0, -1):
        channel.await_ack(buddy, left - 1)
    if _hear(channel, buddy) != _WHOLE:
        raise TransferError(f"what arrived at rank {buddy} is not what was sent")
    return content.nbytes


def keep_copies(channel: Channel, owner: int, slots: list[Slot]) -> None:
    """Take what the owner sends, until contact is lost: it ends with that RuntimeError."""
    while True:
        header = torch.empty(HEADER_SIZE, dtype=torch.uint8)
        channel.receive(header, owner)
        channel.begin()  # it has heard all that we answered last time
        _keep_one(channel, owner, slots, bytes(header.numpy()))


def _keep_one(channel: Channel, owner: int, slots: list[Slot], header: bytes) -> None:
    if any(slot.header() == header for slot in slots):
        _say(channel, owner, _HAVE_IT)
        return
    slot = older(slots)
    try:
        landing = slot.make_room(header)
    except (OSError, ValueError, TransferError):
        _say(channel, owner, _CANNOT)
        return
    _say(channel, owner, _SEND_IT)
    in_flight: deque[PendingReceive] = deque()
    for chunk in _chunks(landing):
        in_flight.append(channel.expect(chunk, owner))
        if len(in_flight) == _IN_FLIGHT:
            in_flight.popleft().wait()
            channel.ack(owner)
    for last in in_flight:
        last.wait()
        channel.ack(owner)
    try:
        slot.seal(header)
    except TransferError:
        _say(channel, owner, _NOT_WHOLE)
    else:
        _say(channel, owner, _WHOLE)


def _chunks(content: torch.Tensor) -> list[torch.Tensor]:
    return [content[start : start + _CHUNK] for start in range(0, len(content), _CHUNK)]


def _say(channel: Channel, to: int, word: int) -> None:
    channel.send(torch.tensor([word], dtype=torch.uint8), to)


def _hear(channel: Channel, sender: int) -> int:
    word = torch.empty(1, dtype=torch.uint8)
    channel.receive(word, sender)
    return int(word)


def copies_on_this_host(folder: str, world: int, but_of: int) -> tuple[tuple[int, int], ...]:
    """Rank and step of every whole copy here of other ranks, by whichever process of this host it was written."""
    return tuple(
        (rank, step)
        for rank in _ranks_with_slots(folder, world)
        if rank != but_of
        for slot in slots_of(folder, world, rank)
        if (step := slot.step()) is not None
    )


def forget_copies_after(folder: str, world: int, step: int) -> None:
    """All ranks have gone back to `step`: what was copied of later ones is void."""
    for rank in _ranks_with_slots(folder, world):
        clear_after(slots_of(folder, world, rank), step)


def remove_copies(folder: str, world: int, but_of: Collection[int] = ()) -> None:
    for rank in _ranks_with_slots(folder, world):
        if rank not in but_of:
            for slot in slots_of(folder, world, rank):
                slot.remove()


def _ranks_with_slots(folder: str, world: int) -> list[int]:
    return sorted({int(path.name.split("-")[2]) for path in Path(folder).glob(f"snapshot-{world}-*-*")})
