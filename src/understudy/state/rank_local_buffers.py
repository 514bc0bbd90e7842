"""Buffers that replicas do not share: which they are, found by comparing.

Batch norm follows the samples of its own rank, so its statistics differ between replicas (DDP sends rank 0's to the
others before each forward pass, and they part again in it). Other buffers are rank-local when twins are seen to differ
in them. Parameters never are.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from understudy.state.digests import number_of
from understudy.state.protected_state import PARAMETERS, Protected, local
from understudy.state.state_digests import BY_XXH3, StateDigests

_STATISTICS = ("running_mean", "running_var")


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank shows to all others when its world is established. `statistics`: it has some of its own. `buffers`: a
    digest of each other buffer; twins have the same ones. `unproven`: its twins are known by structure alone."""

    twin_key: str
    statistics: bool = False
    buffers: list[int] = []
    unproven: bool = False

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(content: bytes) -> "Shown":
        return msgspec.msgpack.decode(content, type=Shown)


def statistics_of(protected: Protected) -> frozenset[str]:
    """Paths of batch-norm statistics that follow the samples of this rank alone."""
    return frozenset(
        f"{PARAMETERS}/{name}/{place}.{key}" if place else f"{PARAMETERS}/{name}/{key}"
        for name, module in protected.modules.items()
        for place, part in module.named_modules()
        if isinstance(part, _BatchNorm) and not isinstance(part, nn.SyncBatchNorm)
        for key in _STATISTICS
        if part._buffers.get(key) is not None
    )


def shared_buffers(protected: Protected) -> dict[str, torch.Tensor]:
    """All others, by path."""
    own = statistics_of(protected)
    return {path: buffer for path, buffer in _buffers(protected) if path not in own}


def digests_of(buffers: Mapping[str, torch.Tensor], digests: StateDigests = BY_XXH3) -> list[int]:
    """In the order of the buffers, which is the same for twins."""
    return [number_of(digest) for digest in digests.each([*buffers.values()])]


def some_differ(shown: Iterable[Shown]) -> bool:
    """Has any rank buffers that are its own? All ranks come to the same answer."""
    first: dict[str, list[int]] = {}
    return any(one.statistics or first.setdefault(one.twin_key, one.buffers) != one.buffers for one in shown)


def differing(protected: Protected, rank: int, shown: Mapping[int, Shown]) -> frozenset[str]:
    """Paths of the buffers of `rank` in which it, or one of its twins, differs from the others."""
    twins: Sequence[Shown] = [one for one in shown.values() if one.twin_key == shown[rank].twin_key]
    columns = zip(shared_buffers(protected), *(one.buffers for one in twins), strict=False)
    return statistics_of(protected) | {path for path, *told in columns if len(set(told)) > 1}


def _buffers(protected: Protected) -> Iterable[tuple[str, torch.Tensor]]:
    for name, module in protected.modules.items():
        for key, buffer in module.named_buffers():
            yield f"{PARAMETERS}/{name}/{key}", local(buffer)
