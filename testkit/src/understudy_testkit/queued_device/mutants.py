"""What the product does for devices that run behind their hosts, left out: each of these must be found.

A mutant changes the product in this process. It stands for a mistake that could be made in the product, or once was.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from understudy.devices import in_use
from understudy.foundation.ids import Generation
from understudy.groups import device_fence, open_batches
from understudy.groups.device_side_fence import DeviceSideFence
from understudy.groups.fence import SharedFence
from understudy.groups.world import World
from understudy.protocol.positions import Position
from understudy.state import word_sums
from understudy.training import steps
from understudy.training.device_rest import DeviceRest
from understudy.training.replicas import Replicas
from understudy.training.running_ahead import RunAhead
from understudy_testkit.queued_device.plugins import QueuedFamily


def fence_off() -> None:
    """Ranks do not wait for each other before state changes."""
    SharedFence.meet = _nothing  # type: ignore[method-assign]


def twins_unfenced() -> None:
    """Plain DDP has no fence, as on CPUs."""
    learn = Replicas.learn_twins

    def learn_twins(replicas: Replicas) -> None:
        replicas._asynchronous = False
        learn(replicas)

    Replicas.learn_twins = learn_twins  # type: ignore[method-assign, assignment]


def old_commit_rule() -> None:
    """An arrival is told as on CPUs: a step is committed because all survivors have arrived."""

    def position(**fields: Any) -> Position:
        arrived = fields.pop("arrived_asynchronously") or fields.pop("arrived")
        return Position(**{**fields, "arrived": arrived})

    steps.Position = position  # type: ignore[assignment, attr-defined]


def arrival_of_the_host() -> None:
    """A rank arrives when its host does."""
    device_fence.comes_to_its_end = lambda device, lost_contact: not lost_contact()  # noqa: ARG005


def abort_without_flags() -> None:
    """A rank arrives when its queue is through, also if that is because its communicators were aborted."""

    def comes_to_its_end(device: Any, lost_contact: Callable[[], bool]) -> bool:
        event = device.record()
        while not event.complete():
            lost_contact()
        return True

    device_fence.comes_to_its_end = comes_to_its_end


def report_before_drain() -> None:
    """What a rank holds is told, put back and read by its host while its queue still works."""
    DeviceRest.come = _nothing  # type: ignore[method-assign]
    in_use.settle_by = _nothing


def digest_before_drain() -> None:
    """Digests of a step are taken beside the queue, while that still works at it."""
    sums = word_sums._sums

    def beside(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        with _disable_current_modes():
            return sums(tensors)

    word_sums._sums = beside
    in_use.settle_by = _nothing


def no_reconfigure_flag() -> None:
    """Groups are made as a script makes them."""
    QueuedFamily.arguments = {}
    QueuedFamily.connected_when_made = True


def words_on_device_groups() -> None:
    """Tensors in host memory go by the groups of the device."""
    QueuedFamily.carries_words = True


def reuse_after_abort() -> None:
    """A group that was aborted is used again without being formed again."""
    World._regroup_one = _nothing  # type: ignore[method-assign]


def batch_left_open() -> None:
    """A batch of messages that a step cut short was collecting is not ended before its group is formed again."""
    open_batches.close = _nothing


def own_word_only() -> None:
    """Where the device decides: a rank asks nobody else."""

    def begin(fence: DeviceSideFence, generation: Generation) -> None:
        fence._generation = generation
        fence._sum_over_world = lambda total: total.mul_(fence._size)

    DeviceSideFence.begin = begin  # type: ignore[method-assign, assignment]


def flags_unread() -> None:
    """Where the device decides: what a rank holds is what its host has come to."""

    def at_rest(ahead: RunAhead) -> None:
        ahead.disarm()
        ahead._flags.clear()
        ahead._ledger.is_undecided = False
        ahead._ledger.saved()

    RunAhead.at_rest = at_rest  # type: ignore[method-assign, assignment]


def _nothing(*_: Any, **__: Any) -> None:
    return


MUTANTS: Mapping[str, Callable[[], None]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        *(fence_off, twins_unfenced, old_commit_rule, arrival_of_the_host, abort_without_flags),
        *(report_before_drain, digest_before_drain, no_reconfigure_flag, words_on_device_groups, reuse_after_abort),
        *(batch_left_open, own_word_only, flags_unread),
    )
}
