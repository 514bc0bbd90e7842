"""Copies of a rank's state on another host: the owner sends a slot, the keeper writes one that is equal byte by byte.

    owner: header ─▶          ◀─ keeper: send it | I have it | I cannot
    owner: chunk, chunk, ... ─▶          ◀─ keeper: an answer to each
                              ◀─ keeper: it is whole | it is not

Nothing is copied on the way: chunks leave from the owner's slot and land in the keeper's, and few are under way at a
time. Each side runs in a thread of its own, over a connection that nothing else uses, and nobody waits for a send
(`mail`). When the connection breaks both sides raise, and the keeper's slot stays empty.
"""

from collections import deque
from collections.abc import Collection
from pathlib import Path

import torch

from understudy.errors import TransferError
from understudy.state.mail import Expected, Mail
from understudy.state.snapshots import HEADER_SIZE, Slot, clear_after, older, slots_of

_CHUNK = 8 << 20  # bytes
_UNDER_WAY = 2  # chunks
_SEND_IT, _HAVE_IT, _CANNOT = 1, 2, 3
_WHOLE, _NOT_WHOLE = 1, 2


def send_copy(mail: Mail, keeper: int, slot: Slot) -> int:
    """Returns how many bytes went. TransferError when the keeper has no use for it; RuntimeError when contact is
    lost."""
    header = slot.header()
    if header is None:
        raise TransferError("there is no whole copy to send")
    mail.begin()
    mail.post(torch.frombuffer(bytearray(header), dtype=torch.uint8), keeper)
    answer = _hear(mail, keeper)
    if answer == _HAVE_IT:
        return 0
    if answer != _SEND_IT:
        raise TransferError(f"rank {keeper} has no memory for a copy")
    content = slot.content()
    chunks = _chunks(content)
    for number, chunk in enumerate(chunks):
        mail.post(chunk, keeper)
        if number >= _UNDER_WAY:
            mail.hear_answer(keeper, _UNDER_WAY)
    for left in range(min(_UNDER_WAY, len(chunks)), 0, -1):
        mail.hear_answer(keeper, left - 1)
    if _hear(mail, keeper) != _WHOLE:
        raise TransferError(f"what arrived at rank {keeper} is not what was sent")
    return content.nbytes


def keep_copies(mail: Mail, owner: int, slots: list[Slot]) -> None:
    """Take what the owner sends, until contact is lost: it ends with that RuntimeError."""
    while True:
        header = torch.empty(HEADER_SIZE, dtype=torch.uint8)
        mail.receive(header, owner)
        mail.begin()  # it has heard all that we answered last time
        _keep_one(mail, owner, slots, bytes(header.numpy()))


def _keep_one(mail: Mail, owner: int, slots: list[Slot], header: bytes) -> None:
    if any(slot.header() == header for slot in slots):
        _say(mail, owner, _HAVE_IT)
        return
    slot = older(slots)
    try:
        landing = slot.make_room(header)
    except (OSError, ValueError, TransferError):
        _say(mail, owner, _CANNOT)
        return
    _say(mail, owner, _SEND_IT)
    under_way: deque[Expected] = deque()
    for chunk in _chunks(landing):
        under_way.append(mail.expect(chunk, owner))
        if len(under_way) == _UNDER_WAY:
            under_way.popleft().wait()
            mail.answer(owner)
    for last in under_way:
        last.wait()
        mail.answer(owner)
    try:
        slot.seal(header)
    except TransferError:
        _say(mail, owner, _NOT_WHOLE)
    else:
        _say(mail, owner, _WHOLE)


def _chunks(content: torch.Tensor) -> list[torch.Tensor]:
    return [content[start : start + _CHUNK] for start in range(0, len(content), _CHUNK)]


def _say(mail: Mail, to: int, word: int) -> None:
    mail.post(torch.tensor([word], dtype=torch.uint8), to)


def _hear(mail: Mail, sender: int) -> int:
    word = torch.empty(1, dtype=torch.uint8)
    mail.receive(word, sender)
    return int(word)


def copies_on_this_host(folder: str, world: int, but_of: int) -> tuple[tuple[int, int], ...]:
    """Rank and step of every whole copy here of other ranks, whoever of this host wrote it."""
    return tuple(
        (rank, step)
        for rank in _ranks_with_slots(folder, world)
        if rank != but_of
        for slot in slots_of(folder, world, rank)
        if (step := slot.step()) is not None
    )


def forget_copies_after(folder: str, world: int, step: int) -> None:
    """Everybody has gone back to `step`: what was copied of later ones is void."""
    for rank in _ranks_with_slots(folder, world):
        clear_after(slots_of(folder, world, rank), step)


def remove_copies(folder: str, world: int, but_of: Collection[int] = ()) -> None:
    for rank in _ranks_with_slots(folder, world):
        if rank not in but_of:
            for slot in slots_of(folder, world, rank):
                slot.remove()


def _ranks_with_slots(folder: str, world: int) -> list[int]:
    return sorted({int(path.name.split("-")[2]) for path in Path(folder).glob(f"snapshot-{world}-*-*")})
