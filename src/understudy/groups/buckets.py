"""The buckets in which DDP adds up gradients: known, compared and made equal on every rank of a group.

Elements of a bucket are summed in an order that depends on their place in it, and ranks whose buckets differ add up
gradients of different parameters. DDP lays its buckets out twice: when it is made, and once more in the order in which
the first backward pass has computed gradients. Which pass that is depends on the body: a module that is used in odd
steps only is laid out again in step 1, and a joiner that rehearsed step 0 knows nothing of it.

So a rank remembers the layout as of the last step that ended, and at every regroup all ranks of a group adopt the one
of a rank that has trained. There is no call for that: a reducer asks rank 0 of its group for the layout, by two
broadcasts, so it is given a group for a moment whose broadcast fills in the layout that is wanted.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from understudy.errors import UnfitError

Buckets = list[list[int]]
"""Which parameters of the reducer are in each bucket, in order."""

_DO = "Wrap the same parameters in DDP on every rank and in every replacement: freeze them in the loop, after that"


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """`rebuilt`: in the order of a backward pass, and final. `trained`: this rank has trained with it, or got it from
    one that has. `tentative`: the others were lost before they could say which one they have."""

    buckets: Buckets | None = None  # None: it cannot be read
    rebuilt: bool = False
    trained: bool = False
    tentative: bool = False

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


def choose(shown: Iterable[bytes]) -> Layout:
    """Of what the ranks of a group show, the lowest first: a rank that has trained knows. Nothing is looked at
    needlessly, because each look is a question to the store."""
    first: Layout | None = None
    for content in shown:
        layout = msgspec.msgpack.decode(content, type=Layout)
        if layout.trained and not layout.tentative:
            return layout
        if first is None or (layout.trained and not first.trained):
            first = layout
    return first or Layout()


class BucketLayout:
    """Of one DDP module. Used by the main thread."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp
        self.known = Layout()

    @property
    def group(self) -> dist.ProcessGroup:
        group = self._ddp.process_group
        assert isinstance(group, dist.ProcessGroup)
        return group

    @property
    def _fixed(self) -> bool:
        """DDP that looks for unused parameters keeps its first layout, unless its graph is static."""
        return bool(self._ddp.find_unused_parameters and not self._ddp.static_graph)

    def settle(self) -> None:
        """At the end of a step, on all ranks alike: a layout that is due is made now (a collective), so that no step
        begins with one that is pending."""
        if self.known.trained and (self.known.rebuilt or self._fixed):
            return
        rebuilt = self._ddp.reducer._rebuild_buckets() or self._ddp._has_rebuilt_buckets
        if rebuilt or not self.known.trained:
            self.known = Layout(buckets=_read(self._ddp), rebuilt=rebuilt, trained=True)

    def settle_alone(self) -> None:
        """The step has ended, but contact was lost before its layout was agreed upon. Most likely it would have been
        the one that this rank has in mind."""
        if self.known.rebuilt or self._fixed:
            return
        reducer, echo = self._ddp.reducer, _Echo()  # kept here: C++ does not keep the Python part of a group
        reducer._update_process_group(echo)
        try:
            rebuilt = reducer._rebuild_buckets()
        except RuntimeError:
            return  # nothing whole is in its mind
        finally:
            reducer._update_process_group(self.group)
        if rebuilt:
            self.known = Layout(buckets=_read(self._ddp), rebuilt=True, trained=True, tentative=True)

    def adopt(self, wanted: Layout) -> None:
        """Begin anew with this layout, whatever a step that was cut short or a rehearsal has left behind."""
        first_one = self.known.buckets == wanted.buckets and not (self.known.rebuilt or self._ddp._has_rebuilt_buckets)
        self._ddp._update_process_group(self.group)  # type: ignore[no-untyped-call]
        if self._fixed:
            self._compare(wanted.buckets)
        elif wanted.buckets is not None and (wanted.rebuilt or not first_one):
            self._impose(wanted.buckets)
            self._ddp._has_rebuilt_buckets = wanted.rebuilt
            if not wanted.rebuilt:
                self._ddp.reducer._reset_state()  # it will be laid out once more, together with the others'
        self.known = msgspec.structs.replace(wanted, trained=True, tentative=False)

    def _compare(self, buckets: Buckets | None) -> None:
        if None not in (buckets, self.known.buckets) and buckets != self.known.buckets:
            raise UnfitError(f"DDP with find_unused_parameters=True has other buckets than those of other ranks. {_DO}")

    def _impose(self, buckets: Buckets) -> None:
        reducer, dictating = self._ddp.reducer, _Dictating(buckets)
        reducer._update_process_group(dictating)
        try:
            reducer._push_all_rebuilt_params()
            rebuilt = reducer._rebuild_buckets()
        finally:
            reducer._update_process_group(self.group)
        if dictating.objection or not rebuilt:
            raise UnfitError(
                "the buckets of a DDP module cannot be made those of the other ranks: "
                f"{dictating.objection or 'it does not lay them out again'}. {_DO}"
            )


def _read(ddp: DistributedDataParallel) -> Buckets | None:
    """DDP numbers its parameters in the order of the module, without those that were frozen when it was made. None:
    there are sparse gradients, which have no buckets."""
    try:
        buckets = [bucket.parameters() for bucket in ddp.reducer._get_zeros_like_grad_buckets()]
    except RuntimeError:
        return None
    reduced = {id(parameter) for bucket in buckets for parameter in bucket}
    numbers: dict[int, int] = {}
    for parameter in ddp.parameters():
        if id(parameter) in reduced:
            numbers[id(parameter)] = len(numbers)
    if len(numbers) != len(reduced):
        return None
    return [[numbers[id(parameter)] for parameter in bucket] for bucket in buckets]


class _Done(dist.Work):
    def wait(self, timeout: Any = None) -> bool:  # noqa: ARG002
        return True


class _Echo(dist.ProcessGroup):
    """A group in which all ranks say what this rank says."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def broadcast(self, tensors: list[torch.Tensor], *_: Any) -> dist.Work:  # type: ignore[override]
        for tensor in tensors:
            self.hear(tensor)
        return _Done()

    def hear(self, tensor: torch.Tensor) -> None:
        """Nothing else than what is in it."""


class _Dictating(_Echo):
    """A group whose rank 0 wants these buckets: first all parameters and the number of buckets, then their sizes."""

    def __init__(self, buckets: Buckets) -> None:
        super().__init__()
        numbers = [number for bucket in buckets for number in bucket]
        self._says = [[*numbers, len(buckets)], [len(bucket) for bucket in buckets]]
        self.objection = ""

    def hear(self, tensor: torch.Tensor) -> None:
        says = self._says.pop(0)
        if self.objection or len(says) != tensor.numel():
            self.objection = self.objection or f"it has {tensor.numel() - 1} parameters instead of {len(says) - 1}"
            return
        tensor.copy_(torch.tensor(says, dtype=tensor.dtype))
