"""Words of ours beside the script's groups: two ranks in one process, each with a gloo backend of its own."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from understudy.errors import RegroupError
from understudy.groups.connecting import Attempt
from understudy.groups.families.gloo import Gloo
from understudy.groups.links import GroupLinks
from understudy.groups.words import OwnWords

CPU, TIMEOUT = torch.device("cpu"), timedelta(seconds=20)


def connected(ranks: list[int]) -> list[OwnWords]:
    family, store = Gloo(), HashStore()
    backends = [family.make(store, place, ranks, TIMEOUT) for place in range(len(ranks))]
    handles = [backend.get_reconfigure_handle() for backend in backends]
    for attempt in [Attempt(family, backend, 7, handles, TIMEOUT, CPU) for backend in backends]:
        attempt.wait(lambda: False)
    words = [OwnWords() for _ in ranks]
    for one, backend in zip(words, backends, strict=True):
        one.use(backend, ranks)
    return words


def all_at_once(*calls: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as threads:
        return [done.result(20) for done in [threads.submit(call) for call in calls]]


def test_ranks_meet_agree_and_tell_each_other_something_by_their_own_numbers() -> None:
    low, high = connected([1, 4])  # the others are absent
    all_at_once(low.barrier, high.barrier)
    assert all_at_once(lambda: low.largest(3), lambda: high.largest(5)) == [5, 5]
    got = torch.zeros(3)
    sending = low.send(torch.arange(3.0), 4)
    high.receive(got, 1).wait()
    sending.wait()
    assert got.tolist() == [0.0, 1.0, 2.0]


def test_nothing_is_said_in_a_group_of_a_former_generation() -> None:
    (words,) = connected([0])
    words.forget()
    with pytest.raises(RegroupError):
        words.barrier()


class Mute(Gloo):
    carries_words = breaks_in_rest = False


def test_only_a_family_that_carries_no_words_gets_gloo_beside_it() -> None:
    usual, mute = (GroupLinks(family, lambda _: True, lambda _: None) for family in (Gloo(), Mute()))
    assert usual.all is usual.of_groups is usual.of_ours and usual.break_at_once is None
    assert mute.of_groups is not mute.of_ours and mute.break_at_once is not None
    assert type(mute.own_family) is Gloo
    assert not mute.all.broken() and not mute.all.unsent() and mute.all.break_all() == 0
