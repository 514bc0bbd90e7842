"""The mode under which a thread's operations go into the queue.

Each operation that reaches torch's dispatcher, in the forward pass, in the backward pass or in an optimizer, is either
done now (it has no influence on the content of device memory), or queued, or needs what the queue has still to compute
and waits for it, as it would on a GPU.

Operations on the host's own tensors are none of the device's. Both kinds in one operation are an error, as on a GPU;
but copies between them, and single numbers of the host, are allowed. What the queue reads of the host's is copied at
once.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from understudy_testkit.queued_device import functional_collectives, randomness
from understudy_testkit.queued_device.memory import DeviceMemory, is_plain
from understudy_testkit.queued_device.rehearsal import Given, Made, PartOf, Rehearsals, change_tensors, tensors_in
from understudy_testkit.queued_device.stream import Stream

_aten = torch.ops.aten
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_NOW = {  # not marked as views, or of which only the shape matters
    *(_aten._unsafe_view.default, _aten._reshape_alias.default),
    *(_aten.empty_like.default, _aten.new_empty.default, _aten.new_empty_strided.default),
}
_MEMORY_CHANGES = {"aten::resize_", "aten::set_", "aten::resize_as_", "aten::_resize_output_"}
_BY_PLACES = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_unsafe_index"}
_DATA_DECIDES = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


class Dispatcher:
    """Decides for each operation. All threads under the mode share one."""

    def __init__(self, stream: Stream, memory: DeviceMemory) -> None:
        self._stream, self._memory = stream, memory
        self._rehearsals = Rehearsals()
        self._threads = 0

    def issue(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if func.namespace in ("c10d", "profiler") or self._stream.is_elsewhere:
            return func(*args, **kwargs)  # backends have a way of their own into the queue
        if func.namespace == "_c10d_functional":
            return functional_collectives.run(self, func, args, kwargs)
        given = tensors_in((args, list(kwargs.values())))
        if not all(map(is_plain, given)):
            return func(*args, **kwargs)
        of_device = [tensor for tensor in given if self._memory.holds(tensor)]
        if not of_device and given:
            returned = func(*args, **kwargs)
            return self._adopted(returned) if _is_new(func, args) else returned
        if not given or func.is_view or func in _NOW or torch.Tag.inplace_view in func.tags:
            return self._adopted(func(*args, **kwargs))
        if len(of_device) < len(given):
            return self._issue_mixed(func, args, kwargs)
        return self._issue_on_device(func, args, kwargs, given)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new tensor of the device with this one's content when the queue comes there."""
        copied = self.issue(_aten.clone.default, (tensor,), {"memory_format": torch.contiguous_format})
        assert isinstance(copied, torch.Tensor)
        return copied

    # -- where the content comes from --------------------------------------------------------------------------------

    def _issue_mixed(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if func is _aten.copy_.default and not self._memory.holds(args[0]):
            self._stream.drain()  # to the host: when the call returns, it is there
            return func(*args, **kwargs)

        def brought(tensor: torch.Tensor) -> torch.Tensor:
            if self._memory.holds(tensor):
                return tensor
            if tensor.dim() and func is not _aten.copy_.default:
                shape = tuple(tensor.shape)
                raise RuntimeError(
                    f"{func}: expected all tensors on the device, but one of shape {shape} is the host's"
                )
            copied = tensor.clone()
            self._memory.adopt(copied)
            return copied

        args, kwargs = change_tensors(tuple(args), brought), {k: change_tensors(v, brought) for k, v in kwargs.items()}
        return self._issue_on_device(func, args, kwargs, tensors_in((args, list(kwargs.values()))))

    def _issue_on_device(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], given: list[torch.Tensor]
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            drawn = randomness.drawn(func, args, kwargs, given)
            if drawn is None:
                return self._after_the_queue(func, args, kwargs)
            func, args, kwargs, given = _aten.copy_.default, (args[0], drawn), {}, [args[0], drawn]
        if func._schema.name in _MEMORY_CHANGES or _content_decides(func, args):
            return self._after_the_queue(func, args, kwargs)
        outcome = self._rehearsals.outcome(func, args, kwargs)
        if outcome is None:
            return self._after_the_queue(func, args, kwargs)
        return self._queue(func, args, kwargs, given, outcome)

    def _after_the_queue(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        self._stream.drain()
        return self._adopted(func(*args, **kwargs))

    def _adopted(self, returned: Any) -> Any:
        for tensor in tensors_in(returned):
            if is_plain(tensor):
                self._memory.adopt(tensor)
        return returned

    # -- queueing -----------------------------------------------------------------------------------------------------

    def _queue(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], given: list[torch.Tensor], outcome: Any
    ) -> Any:
        """`args` may be changed by the host before the queue comes there (`param.data = ...`): the queue has its own
        tensors of the same memory."""
        args = change_tensors(tuple(args), _same_memory)
        kwargs = {name: change_tensors(value, _same_memory) for name, value in kwargs.items()}
        returned, targets, hidden = _made_of(outcome, given)
        written = [*(_same_memory(tensor) for tensor in _written(func, args, kwargs)), *hidden]
        targets = [None if target is None else _same_memory(target) for target in targets]
        for target in targets:
            if target is not None:
                self._memory.adopt(target)
                written.append(target)
        self._follow_thread_count()
        self.put(lambda: _fill(targets, func(*args, **kwargs)), written)
        return returned

    def put(self, call: Callable[[], None], written: Sequence[torch.Tensor]) -> None:
        """Queue something that writes into these tensors."""
        places = self._memory.expect(written)

        def do() -> None:
            try:
                call()
            finally:
                self._memory.arrived(places)

        self._stream.add(do)

    def _follow_thread_count(self) -> None:
        """torch keeps it per thread, and sums depend on it."""
        wanted = torch.get_num_threads()
        if wanted != self._threads:
            self._threads = wanted
            self._stream.add(lambda: torch.set_num_threads(wanted))


class QueueingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`DTensor` and other subclasses take themselves apart first: what they consist of comes here again."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dispatcher = dispatcher

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled under this mode, and the wrapper costs time

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return func(*args, **(kwargs or {}))  # DTensor asks what would come out: nothing is computed
        if any(each not in _PLAIN for each in types):
            return NotImplemented
        return self._dispatcher.issue(func, args, kwargs or {})


def _same_memory(tensor: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.alias.default(tensor)  # type: ignore[no-any-return]


def _is_new(func: Any, args: Sequence[Any]) -> bool:
    """Is it the content of a `torch.tensor(...)`? What is an array of NumPy at the same time stays the host's."""
    return func is _aten.lift_fresh.default and args[0].untyped_storage().resizable()


def _content_decides(func: Any, args: Sequence[Any]) -> bool:
    """Does the shape of what is returned, or a number, depend on what is computed?"""
    if func._schema.name in _BY_PLACES:
        return any(place is not None and place.dtype in (torch.bool, torch.uint8) for place in args[1])
    return any(tag in func.tags for tag in _DATA_DECIDES)


def _made_of(outcome: Any, given: list[torch.Tensor]) -> tuple[Any, list[torch.Tensor | None], list[torch.Tensor]]:
    """What the host gets; where the queue puts what it computes, in the same order; and tensors that the operation
    returns as its own though they are parts of what was given, so that it may have written into them."""
    targets: list[torch.Tensor | None] = []
    hidden: list[torch.Tensor] = []

    def make(each: Any) -> Any:
        if isinstance(each, Made):
            targets.append(torch.empty_strided(each.size, each.stride, dtype=each.dtype))
            return targets[-1]
        if isinstance(each, Given):
            targets.append(None)
            return given[each.place]
        if isinstance(each, PartOf):
            targets.append(None)
            whole = given[each.place]
            part = whole.as_strided(each.size, each.stride, whole.storage_offset() + each.offset)
            hidden.append(part)
            return part
        if isinstance(each, list | tuple):
            return type(each)(map(make, each))
        return each

    return make(outcome)[0], targets, hidden


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    declared = func._schema.arguments
    by_name = {argument.name: argument for argument in declared}
    pairs = itertools.chain(zip(declared, args, strict=False), ((by_name[k], v) for k, v in kwargs.items()))
    return [
        tensor
        for argument, value in pairs
        if argument.alias_info is not None and argument.alias_info.is_write
        for tensor in tensors_in((value,))
    ]


def _fill(targets: Sequence[torch.Tensor | None], returned: Any) -> None:
    for target, computed in zip(targets, tensors_in((returned,)), strict=True):
        if target is not None:
            if target.shape != computed.shape:
                raise RuntimeError(f"expected a result of shape {tuple(target.shape)}, not {tuple(computed.shape)}")
            target.copy_(computed)
