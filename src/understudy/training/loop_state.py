"""The small state of a loop that is not ours: counters, running sums, positions of loaders (`job.carry`).

A window (`windows`) takes it at the entry of each of its parts, and puts it back before that part runs again. What
must outlive this process is written down, window by window, where a replacement of this rank finds it: as it was at the
begin of the window, and, from the fence on, as it was at the entry of each part and what the parts have returned. So a
replacement begins the window with it; or, where the window counts already, goes through it without computing, and
through the sections after it that are over.

Knows nothing of steps and recoveries.
"""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import torch
from torch import nn

from understudy.errors import ProtectError
from understudy.state.encoding import fits, pack, unpack
from understudy.state.protected_state import Stateful
from understudy.state.rank_local_files import RankLocalFiles

_MOST_OF_A_RESULT = 256 * 1024
"""Bytes of what a part has returned; what is larger is not written down."""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A place in a window. `state`: what is carried, at the entry of a part or at the end of a section. `value`: what
    it has returned, None where that is not known. `name`: of a section."""

    state: bytes
    value: bytes | None = None
    name: str = ""


class Record(msgspec.Struct, array_like=True):
    """Of one window of one rank. `fence`: what was carried when the rank came to the fence, in the last of its `parts`,
    and `small`: what the rest of the window may read of what is protected. `after`: what was carried at its commit.
    `sections`: those behind it."""

    window: int
    begun: bytes
    parts: list[Mark] = []
    fence: bytes | None = None
    small: bytes = b""
    after: bytes | None = None
    sections: list[Mark] = []


class Carried(Protocol):
    """Takes and puts back one of the things that are carried."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


class Fields:
    """Attributes of an object as a state: those that are `named`, or all that are plain when it is asked for. Of a
    module only public ones: the others belong to torch, and to what it is built on."""

    def __init__(self, thing: Any, *named: str) -> None:
        self._thing, self._named = thing, named

    def state_dict(self) -> dict[str, Any]:
        if self._named:
            return {name: getattr(self._thing, name) for name in self._named if hasattr(self._thing, name)}
        return {
            name: value
            for name, value in vars(self._thing).items()
            if self._is_own(name) and fits(value, _MOST_OF_A_RESULT)
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            present = getattr(self._thing, name, None)
            if isinstance(present, torch.Tensor) and isinstance(value, torch.Tensor) and present.shape == value.shape:
                present.copy_(value)  # others may have been given it
            elif isinstance(present, dict) and isinstance(value, dict):
                present.clear()  # it may be of a kind of its own
                present.update(value)
            else:
                setattr(self._thing, name, value)

    def _is_own(self, name: str) -> bool:
        return not isinstance(self._thing, nn.Module) or not (name.startswith("_") or name == "training")


class LoopState:
    """Of one member. `files`: where a replacement on this host looks; None where nothing is protected. `elsewhere`: a
    replacement may be on another host, and then gets what its donor carries."""

    def __init__(
        self, files: RankLocalFiles | None = None, note: Callable[[str], None] = print, elsewhere: bool = False
    ) -> None:
        self._files, self._note, self.elsewhere = files, note, elsewhere
        self._things: dict[str, Carried] = {}
        self._complained = False
        self._donors = b""
        self.record: Record | None = None  # of the window that was begun last

    def carry(self, name: str, thing: Any) -> None:
        if name in self._things:
            raise ProtectError(f"{name} is carried already")
        self._things[name] = thing if isinstance(thing, Stateful) else Fields(thing)

    # -- in this process ----------------------------------------------------------------------------------------------

    def take(self) -> bytes:
        """As it is now."""
        return pack({name: thing.state_dict() for name, thing in self._things.items()}, "what job.carry() was given")

    def put(self, taken: bytes) -> None:
        for name, state in unpack(taken).items():
            self._things[name].load_state_dict(state)

    # -- what outlives it ---------------------------------------------------------------------------------------------

    def begin(self, window: int, taken: bytes) -> None:
        self.record = Record(window, taken)
        self.write()

    def write(self) -> None:
        if self._files is None or self.record is None:
            return
        trouble = self._files.keep(self.record.window, msgspec.msgpack.encode(self.record))
        if trouble is not None and not self._complained:
            self._complained = True
            self._note(
                f"what job.carry() was given could not be kept in shared memory: {trouble}. Training goes on; if this "
                "rank is lost now, its replacement has none of it"
            )

    def section_ends(self, name: str, result: Any) -> None:
        """Before its fence: a rank that passes that may rely on it."""
        if self.record is not None:
            self.record.sections.append(Mark(self.take(), packed(result), name))
            self.write()

    def pass_section(self, place: int) -> None:
        """A section is not run here, because it is over."""
        if self.record is not None and place < len(self.record.sections):
            self.put(self.record.sections[place].state)

    def forget_sections_from(self, place: int) -> None:
        """They run again."""
        if self.record is not None:
            del self.record.sections[place:]

    def find(self, window: int) -> Record | None:
        """What this rank's former holder has written down of that window; else what a donor has."""
        content = None if self._files is None else self._files.find(window)
        for known in (content, self._donors):
            if known and (record := msgspec.msgpack.decode(known, type=Record)).window == window:
                return record
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"record": b"" if self.record is None else msgspec.msgpack.encode(self.record)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Of a donor."""
        self._donors = state["record"]


def packed(result: Any) -> bytes | None:
    """None where it is too large, or no plain value."""
    if isinstance(result, torch.Tensor):
        if result.nbytes > _MOST_OF_A_RESULT:
            return None
        result = result.detach()
    try:
        content = pack(result, "the result")
    except (ProtectError, RuntimeError):
        return None
    return content if len(content) <= _MOST_OF_A_RESULT else None
