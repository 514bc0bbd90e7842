"""What a rank was told while it set up, kept so that its replacement can be told the same.

Setup that talks (a configuration broadcast from rank 0, `all_gather_object`, the shapes that pipeline stages tell each
other in their first step) has no answer in a joiner's sandbox. So every rank keeps what came to it from the others
until its world is established, in the order in which it came, group by group. A joiner runs the same setup, and each
time it would hear from others it hears what the rank heard then.

Only small messages are kept. Large ones are parameters and activations: the former come with the state, the latter are
of no use to a rehearsal.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HookOpName

from understudy.devices.memory import host_bytes

_MOST = 256 * 1024  # bytes of one message
_HOOK = 0x5EED  # the number of our hooks in each group

_IN_PLACE = (HookOpName.BROADCAST, HookOpName.ALLREDUCE, HookOpName.ALLREDUCE_COALESCED, HookOpName.REDUCE)


class Op(msgspec.Struct, frozen=True, array_like=True):
    """One thing that was heard: by which operation, and the bytes of each tensor. None: too large, or it never came."""

    operation: str
    heard: list[bytes | None]


Recording = dict[str, list[Op]]
"""By group, in order."""


@dataclass(slots=True)
class _Pending:
    """An operation that was issued: where it will be heard, and its place in the recording."""

    group: str
    place: int
    operation: str
    tensors: list[torch.Tensor | None]
    work: Any = None


class Recorder:
    """Listens to the groups of a founding member. `told` is called for every operation."""

    def __init__(self, told: Callable[[], None] = lambda: None) -> None:
        self._told = told
        self._recording: Recording = {}
        self._groups: list[dist.ProcessGroup] = []
        self._issued: dict[tuple[str, int], _Pending] = {}
        self._pending: list[_Pending] = []

    def attend(self, name: str, group: dist.ProcessGroup) -> None:
        self._recording[name] = []
        self._groups.append(group)
        group.register_pre_hook(_HOOK, lambda call: self._issue(name, call))
        group.register_post_hook(_HOOK, lambda call: self._follow(name, call))

    def _issue(self, name: str, call: Any) -> None:
        self._told()
        tensors = heard_in(call)
        if not tensors:
            return
        ops = self._recording[name]
        small = [tensor if tensor.nbytes <= _MOST else None for tensor in tensors]
        ops.append(Op(call.name.name, [None] * len(small)))
        if any(tensor is not None for tensor in small):
            self._issued[name, call.op_id] = _Pending(name, len(ops) - 1, call.name.name, small)

    def _follow(self, name: str, call: Any) -> None:
        self._note_what_came()
        pending = self._issued.pop((name, call.op_id), None)
        if pending is None:
            return
        pending.work = call.work
        self._pending.append(pending)
        if not call.async_op and call.name is not HookOpName.RECV and call.work is not None:
            call.work.wait()  # the caller waits for it anyway; later it may change what it heard
            self._note_what_came()

    def _note_what_came(self) -> None:
        waiting = []
        for pending in self._pending:
            if pending.work is not None and not pending.work.is_completed():
                waiting.append(pending)
                continue
            heard = [None if tensor is None else _bytes_of(tensor) for tensor in pending.tensors]
            self._recording[pending.group][pending.place] = Op(pending.operation, heard)
        self._pending = waiting

    def finish(self) -> Recording:
        """Everything that was heard. Nothing is listened to any more."""
        self._note_what_came()
        self._pending.clear()
        for group in self._groups:
            group.unregister_pre_hook(_HOOK)
            group.unregister_post_hook(_HOOK)
        self._groups.clear()
        return self._recording


@dataclass(slots=True)
class Replayer:
    """Tells a joiner, in its sandbox, what the rank was told. Says nothing once the joiner issues other operations."""

    recording: Recording
    _places: dict[str, int] = field(default_factory=dict)
    _issued: dict[tuple[str, int], tuple[Op, list[torch.Tensor]]] = field(default_factory=dict)

    def attend(self, name: str, group: dist.ProcessGroup) -> None:
        group.register_pre_hook(_HOOK, lambda call: self._issue(name, call))
        group.register_post_hook(_HOOK, lambda call: self._tell(name, call))

    @staticmethod
    def leave(group: dist.ProcessGroup) -> None:
        group.unregister_pre_hook(_HOOK)
        group.unregister_post_hook(_HOOK)

    def _issue(self, name: str, call: Any) -> None:
        tensors = heard_in(call)
        ops = self.recording.get(name, [])
        place = self._places.get(name, 0)
        if not tensors or place >= len(ops):
            return
        self._places[name] = place + 1
        op = ops[place]
        if op.operation != call.name.name or len(op.heard) != len(tensors):
            self.recording[name] = []  # from here on the setups differ
            return
        self._issued[name, call.op_id] = (op, tensors)

    def _tell(self, name: str, call: Any) -> None:
        op, tensors = self._issued.pop((name, call.op_id), (None, []))
        if op is None:
            return
        for heard, tensor in zip(op.heard, tensors, strict=True):
            if heard is not None and len(heard) == tensor.nbytes:
                _write(heard, tensor)


def heard_in(call: Any) -> list[torch.Tensor]:
    """Where an operation leaves what comes from the others."""
    if call.output_tensors:
        return list(call.output_tensors)
    return list(call.input_tensors) if call.name in _IN_PLACE else []


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return bytes(host_bytes(tensor))


def _write(heard: bytes, tensor: torch.Tensor) -> None:
    if heard:
        received = torch.frombuffer(bytearray(heard), dtype=torch.uint8)
        with torch.no_grad():
            tensor.copy_(received.view(tensor.dtype).reshape(tensor.shape))
