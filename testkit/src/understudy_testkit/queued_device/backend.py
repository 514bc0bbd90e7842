"""A backend of c10d with the contract of NCCL (nccl2 of torch 2.15), as far as it can be seen from the host.

`formation` forms it and ends it; here are its collectives. The rules are in docs/queued-device.md, with their numbers.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from understudy_testkit.queued_device.communicator import OfGloo, Operation
from understudy_testkit.queued_device.formation import Formation
from understudy_testkit.queued_device.work import QueuedWork

_Tensors = list[torch.Tensor]


def _options(given: Any) -> tuple[Any, ...]:
    return () if given is None else (given,)


def _flat(lists: list[_Tensors]) -> _Tensors:
    return list(chain.from_iterable(lists))


class QueuedBackend(Formation):
    """Names are torch's."""

    # -- collectives --------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: _Tensors, opts: Any = None) -> Any:
        begin = self._in_place("broadcast", tensors, opts or dist.BroadcastOptions())
        return self._issue(Operation("broadcast", begin, reads=tensors, writes=tensors))

    def allreduce(self, tensors: _Tensors, opts: Any = None) -> Any:
        begin = self._in_place("allreduce", tensors, opts or dist.AllreduceOptions())
        return self._issue(Operation("allreduce", begin, reads=tensors, writes=tensors))

    def allreduce_coalesced(self, tensors: _Tensors, opts: Any = None) -> Any:
        options = dist.AllreduceOptions()
        options.reduceOp = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        return self._together([partial(self.allreduce, [tensor], options) for tensor in tensors])

    def reduce(self, tensors: _Tensors, opts: Any = None) -> Any:
        begin = self._in_place("reduce", tensors, opts or dist.ReduceOptions())
        return self._issue(Operation("reduce", begin, reads=tensors, writes=tensors))

    def allgather(self, outputs: list[_Tensors], inputs: _Tensors, opts: Any = None) -> Any:
        def begin(gloo: Any, own: OfGloo) -> list[Any]:
            return [gloo.allgather([list(map(own, each)) for each in outputs], list(map(own, inputs)), *_options(opts))]

        return self._issue(Operation("allgather", begin, reads=inputs, writes=_flat(outputs)))

    def allgather_coalesced(self, outputs: list[_Tensors], inputs: _Tensors, opts: Any = None) -> Any:
        by_input = [[of_rank[place] for of_rank in outputs] for place in range(len(inputs))]
        pairs = zip(by_input, inputs, strict=True)
        return self._together([partial(self.allgather, [output], [given], opts) for output, given in pairs])

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        def begin(gloo: Any, own: OfGloo) -> list[Any]:
            return [gloo.all_gather_single(own(output), own(given), *_options(opts))]

        return self._issue(Operation("all_gather_single", begin, reads=[given], writes=[output]))

    def all_gather_single_coalesced(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        return self._together([partial(self.all_gather_single, output, given, opts) for output, given in pairs])

    def reduce_scatter(self, outputs: _Tensors, inputs: list[_Tensors], opts: Any = None) -> Any:
        options = opts or dist.ReduceScatterOptions()

        def begin(gloo: Any, own: OfGloo) -> list[Any]:
            return [gloo.reduce_scatter(list(map(own, outputs)), [list(map(own, each)) for each in inputs], options)]

        return self._issue(Operation("reduce_scatter", begin, reads=_flat(inputs), writes=outputs))

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        options = opts or dist.ReduceScatterOptions()

        def begin(gloo: Any, own: OfGloo) -> list[Any]:
            return [gloo.reduce_scatter_single(own(output), own(given), options)]

        return self._issue(Operation("reduce_scatter_single", begin, reads=[given], writes=[output]))

    def reduce_scatter_single_coalesced(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        return self._together([partial(self.reduce_scatter_single, output, given, opts) for output, given in pairs])

    def all_to_all_single(
        self, output: torch.Tensor, given: torch.Tensor, received: list[int], sent: list[int], opts: Any = None
    ) -> Any:
        options = opts or dist.AllToAllOptions()

        def begin(gloo: Any, own: OfGloo) -> list[Any]:
            return [gloo.all_to_all_single(own(output), own(given), received, sent, options)]

        return self._issue(Operation("all_to_all_single", begin, reads=[given], writes=[output]))

    def gather(self, outputs: list[_Tensors], inputs: _Tensors, opts: Any = None) -> Any:
        options = opts or dist.GatherOptions()

        def begin(gloo: Any, own: OfGloo) -> list[Any]:
            return [gloo.gather([list(map(own, each)) for each in outputs], list(map(own, inputs)), options)]

        return self._issue(Operation("gather", begin, reads=inputs, writes=_flat(outputs)))

    def scatter(self, outputs: _Tensors, inputs: list[_Tensors], opts: Any = None) -> Any:
        options = opts or dist.ScatterOptions()

        def begin(gloo: Any, own: OfGloo) -> list[Any]:
            return [gloo.scatter(list(map(own, outputs)), [list(map(own, each)) for each in inputs], options)]

        return self._issue(Operation("scatter", begin, reads=_flat(inputs), writes=outputs))

    def barrier(self, opts: Any = None) -> Any:
        """The host waits for it, unless it is asked for as an operation that goes on beside the host."""
        blocks = not getattr(opts, "asyncOp", False)
        return self._issue(Operation("barrier", lambda gloo, _: [gloo.barrier()]), blocks=blocks)

    # -- messages -----------------------------------------------------------------------------------------------------

    def send(self, tensors: _Tensors, to: int, tag: int = 0) -> Any:
        def begin(gloo: Any, own: OfGloo) -> list[Any]:
            return [gloo.send(list(map(own, tensors)), to, tag)]

        return self._issue(Operation("send", begin, reads=tensors, to=(to,)))

    def recv(self, tensors: _Tensors, sender: int, tag: int = 0) -> Any:
        def begin(gloo: Any, own: OfGloo) -> list[Any]:
            return [gloo.recv(list(map(own, tensors)), sender, tag)]

        return self._issue(Operation("recv", begin, writes=tensors, senders=(sender,)))

    # -- several as one -----------------------------------------------------------------------------------------------

    def start_coalescing(self) -> None:
        if self._collected is not None:
            raise RuntimeError("a batch is open already")
        self._collected = []

    def end_coalescing(self) -> Any:
        if self._collected is None:
            raise RuntimeError("no batch is open")
        collected, self._collected = self._collected, None
        return self._issue(_as_one(collected)) if collected else self._nothing_to_wait_for()

    def _together(self, calls: Sequence[Callable[[], Any]]) -> Any:
        if self._collected is not None:
            for call in calls:
                call()
            return None
        self.start_coalescing()
        try:
            for call in calls:
                call()
        except BaseException:
            self._collected = None
            raise
        return self.end_coalescing()

    # -- into the queue -----------------------------------------------------------------------------------------------

    @staticmethod
    def _in_place(name: str, tensors: _Tensors, options: Any) -> Callable[[Any, OfGloo], list[Any]]:
        return lambda gloo, own: [getattr(gloo, name)(list(map(own, tensors)), options)]

    def _issue(self, operation: Operation, blocks: bool = False) -> Any:
        self._refuse_tensors_of_the_host(operation)
        communicator = self._usable()
        if self._collected is not None:
            self._collected.append(operation)
            return None  # no work to wait for, so torch takes it for done
        self.device.dispatcher.put(lambda: communicator.run(operation), operation.writes)
        event = self._last = self.device.record_event()
        return QueuedWork(event, operation.writes, lambda: self._trouble_of(communicator), blocks)

    def _refuse_tensors_of_the_host(self, operation: Operation) -> None:
        for tensor in (*operation.reads, *operation.writes):
            if not self.device.memory.holds(tensor):
                raise RuntimeError(f"{operation.name} of a tensor of the host: no backend type associated with it")

    def _nothing_to_wait_for(self) -> QueuedWork:
        return QueuedWork(self.device.record_event())

    @property
    def supports_coalescing(self) -> bool:
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        self.options._timeout = timeout


def _as_one(operations: Sequence[Operation]) -> Operation:
    """All begin before any is waited for."""

    def begin(gloo: Any, own: OfGloo) -> list[Any]:
        return [work for operation in operations for work in operation.begin(gloo, own)]

    return Operation(
        name=" and ".join(dict.fromkeys(operation.name for operation in operations)),
        begin=begin,
        reads=[tensor for operation in operations for tensor in operation.reads],
        writes=[tensor for operation in operations for tensor in operation.writes],
        to=tuple(peer for operation in operations for peer in operation.to),
        senders=tuple(peer for operation in operations for peer in operation.senders),
    )
