"""Collectives that return new tensors (`_c10d_functional`): DTensor speaks to other ranks by these.

torch's own would copy their input before the queue has computed it. So they are made here of a copy in the queue and of
the collective that writes into it. The work that `wait_tensor` waits for is kept with the tensor.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group

if TYPE_CHECKING:
    from understudy_testkit.queued_device.dispatch import Dispatcher

_WORK = "_queued_device_work"


def run(dispatcher: "Dispatcher", func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    name = func._schema.name.removeprefix("_c10d_functional::")
    way = _WAYS.get(name)
    if way is None:
        raise NotImplementedError(f"the queued device has no {func}")
    return way(dispatcher, *args, **kwargs)


def _group(named: Any) -> dist.ProcessGroup:
    return named if isinstance(named, dist.ProcessGroup) else _resolve_process_group(named)


def _operation(named: Any) -> Any:
    return getattr(dist.ReduceOp, named.upper()) if isinstance(named, str) else named


def _with_work(tensor: torch.Tensor, work: Any) -> torch.Tensor:
    setattr(tensor.untyped_storage(), _WORK, work)
    return tensor


def _new(dispatcher: "Dispatcher", like: torch.Tensor, rows: int) -> torch.Tensor:
    made = dispatcher.issue(torch.ops.aten.new_empty.default, (like, [rows, *like.shape[1:]]), {})
    assert isinstance(made, torch.Tensor)
    return made


def _all_reduce(dispatcher: "Dispatcher", tensor: torch.Tensor, operation: Any, group: Any) -> torch.Tensor:
    return _all_reduce_in_place(dispatcher, dispatcher.copy(tensor), operation, group)


def _all_reduce_in_place(_: "Dispatcher", tensor: torch.Tensor, operation: Any, group: Any) -> torch.Tensor:
    options = dist.AllreduceOptions()
    options.reduceOp = _operation(operation)
    return _with_work(tensor, _group(group).allreduce([tensor], options))


def _all_gather(dispatcher: "Dispatcher", tensor: torch.Tensor, size: int, group: Any) -> torch.Tensor:
    gathered = _new(dispatcher, tensor, tensor.shape[0] * size)
    return _with_work(gathered, _group(group).all_gather_single(gathered, dispatcher.copy(tensor)))


def _reduce_scatter(
    dispatcher: "Dispatcher", tensor: torch.Tensor, operation: Any, size: int, group: Any
) -> torch.Tensor:
    part = _new(dispatcher, tensor, tensor.shape[0] // size)
    options = dist.ReduceScatterOptions()
    options.reduceOp = _operation(operation)
    return _with_work(part, _group(group).reduce_scatter_single(part, dispatcher.copy(tensor), options))


def _all_to_all(
    dispatcher: "Dispatcher", tensor: torch.Tensor, received: list[int], sent: list[int], group: Any
) -> torch.Tensor:
    exchanged = _new(dispatcher, tensor, sum(received) if received else tensor.shape[0])
    work = _group(group).all_to_all_single(exchanged, dispatcher.copy(tensor), received, sent)
    return _with_work(exchanged, work)


def _broadcast(dispatcher: "Dispatcher", tensor: torch.Tensor, source: int, group: Any) -> torch.Tensor:
    copied = dispatcher.copy(tensor)
    options = dist.BroadcastOptions()
    options.rootRank = source
    return _with_work(copied, _group(group).broadcast([copied], options))


def _wait(_: "Dispatcher", tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    work = getattr(storage, _WORK, None)
    if work is not None:
        setattr(storage, _WORK, None)
        work.wait()
    return tensor


_WAYS: dict[str, Any] = {
    "all_reduce": _all_reduce,
    "all_reduce_": _all_reduce_in_place,
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "all_to_all_single": _all_to_all,
    "broadcast": _broadcast,
    "wait_tensor": _wait,
    "_wrap_tensor_autograd": lambda _, tensor: tensor,
}
