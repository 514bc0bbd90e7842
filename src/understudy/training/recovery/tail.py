"""Results of the collectives and sections that the script has run since the last commit, kept for ranks that lack some.

They are counted since the last commit. A rank that lacks some, because others were further or because it has
just joined, is told their results instead of taking part. When the world goes back to an earlier step no rank is left
to issue them with: then results are void until the script is back at its loop.

Knows nothing of how they are run (`between_steps`, `sections`).
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import torch

from understudy.devices.memory import host_bytes
from understudy.errors import ProtectError
from understudy.protocol.commands import Tail
from understudy.state.encoding import pack, unpack
from understudy.state.transfer.p2p import Channel

_MOST_KEPT = 64 << 20
"""Bytes of results since the last commit; what is more is not kept."""


class Result(msgspec.Struct, frozen=True):
    """`tensors`: what a collective left in the tensors that it was given, one after another. `value`: what the function
    of a `section` returned, `small`: the small state behind it. None where that is not known."""

    tensors: list[bytes] | None
    section: str = ""
    value: bytes | None = None
    small: bytes | None = None


class TailResults:
    """Of one member.

    - `expected`: the script has sections, or has communicated between two steps before.
    - `waiting`: its main thread is cut short in a collective or a section between two steps.
    - `ahead`: a step is committed, and the script goes on with what follows it once a recovery is over.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self.expected = self.waiting = self.ahead = False
        self._results: list[Result] = []
        self._kept = 0
        self._foretold: deque[Result] = deque()
        self._void = False

    @property
    def done(self) -> int:
        """Collectives that were completed since the last commit."""
        return len(self._results)

    @property
    def comes_next(self) -> bool:
        """Does the script go on between two steps, and perhaps communicate there?"""
        return self.waiting or (self.ahead and self.expected)

    @contextmanager
    def is_ahead(self, truly: bool = True) -> Iterator[None]:
        """While a recovery lasts that began in a step which is committed now."""
        self.ahead = truly
        try:
            yield
        finally:
            self.ahead = False

    def begin(self) -> None:
        """A step was committed: what follows is counted anew."""
        self._results, self._kept, self._void = [], 0, False
        self._foretold.clear()

    def begin_step(self) -> None:
        """The script has come back to its loop."""
        self._void = False
        if self._foretold:
            self._note(f"the script issued {len(self._foretold)} collectives less between steps than other ranks did")
            self._foretold.clear()

    def exchange(self, tail: Tail | None, channel: Channel, rank: int, *, received: bool) -> None:
        """After the transfer: results go to the ranks that lack some. `received`: this rank has got its state as well,
        so that what it had counted belongs to the past."""
        if received:
            self.begin()
        if tail is None:
            self._void = self.waiting
            return
        if rank == tail.donor:
            content = msgspec.msgpack.encode(self._results[: tail.done])
            for lacking in tail.lacking:
                channel.send_bytes(content, lacking)
            for lacking in tail.lacking:
                channel.await_ack(lacking, in_flight=0)
        elif rank in tail.lacking:
            told = msgspec.msgpack.decode(channel.receive_bytes(tail.donor), type=list[Result])
            channel.ack(tail.donor)
            self._foretold = deque(told[self.done :])

    @property
    def is_told(self) -> bool:
        """Other ranks have completed what comes next, and have told its result."""
        return bool(self._foretold)

    @property
    def foretold(self) -> int:
        """How many results of what comes next are known."""
        return len(self._foretold)

    def foretell(self, sections: list[tuple[str, bytes | None]]) -> None:
        """By name and result: they are over, and this rank goes through them in a window that counts already."""
        self._foretold = deque(Result(None, name, value) for name, value in sections)

    @property
    def is_void(self) -> bool:
        return self._void

    def take_value(self, section: str) -> tuple[bool, Any, bytes | None]:
        """Of the next section, which is over for other ranks: is its result known, the result, the small state."""
        result = self._foretold.popleft()
        self._results.append(result)
        if result.section != section:
            self._note(
                f"the script runs the section {section} where other ranks ran {result.section or 'a collective'}"
            )
            return False, None, None
        if result.value is None:
            return False, None, result.small
        return True, unpack(result.value), result.small

    def keep_value(self, section: str, value: Any, small: bytes | None = None) -> None:
        """A section is over."""
        try:
            content = pack(value, f"the result of the section {section}")
        except ProtectError:
            content = b""
        told = [self._room_for(part) for part in (content or None, small)]
        self._results.append(Result(None, section, *told))

    def _room_for(self, content: bytes | None) -> bytes | None:
        """None for what is too large to be kept."""
        if content is None or self._kept + len(content) > _MOST_KEPT:
            return None
        self._kept += len(content)
        return content

    def fill(self, tensors: list[torch.Tensor]) -> bool:
        """Is the result of the next collective known without communicating? Then it is in `tensors`."""
        if self._void:
            self._write(tensors, Result(None))
            return True
        if not self._foretold:
            return False
        result = self._foretold.popleft()
        self._write(tensors, result)
        self._results.append(result)
        return True

    def keep(self, tensors: list[torch.Tensor] | None) -> None:
        """A collective is completed. None: its result is another one on every rank."""
        size = sum(tensor.nbytes for tensor in tensors or ())
        if tensors is None or self._kept + size > _MOST_KEPT:
            self._results.append(Result(None))
            return
        self._kept += size
        self._results.append(Result([_bytes_of(tensor) for tensor in tensors]))

    def _write(self, tensors: list[torch.Tensor], result: Result) -> None:
        fits = result.tensors is not None and [len(part) for part in result.tensors] == [t.nbytes for t in tensors]
        if not fits:
            self._note(
                "a result of communication between steps is not known to this rank: floating-point numbers in it are "
                "NaN" + (", because the world has gone back to an earlier step" if self._void else "")
            )
        with torch.no_grad():
            for place, tensor in enumerate(tensors):
                if fits and result.tensors is not None:
                    _copy_into(tensor, result.tensors[place])
                elif tensor.is_floating_point():
                    tensor.fill_(float("nan"))


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return bytes(host_bytes(tensor))


def _copy_into(tensor: torch.Tensor, content: bytes) -> None:
    if content:
        flat = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(tensor.dtype)
        tensor.copy_(flat.reshape(tensor.shape))
