"""Against a real TCPStore in this process."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from understudy.errors import StepAbandoned
from understudy.groups.store import InterruptibleStore

Connect = Callable[..., InterruptibleStore]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port
    del store


@pytest.fixture
def connect(port: int) -> Connect:
    def make(abandoned: Callable[[], bool] = lambda: False, seconds: float = 10.0) -> InterruptibleStore:
        return InterruptibleStore("127.0.0.1", port, abandoned, timedelta(seconds=seconds))

    return make


def test_what_one_sets_another_gets(connect: Connect) -> None:
    one, two = connect(), connect()
    one.set("a", "text")
    one.set("b", b"\x00bytes")
    assert two.get("a") == b"text"
    assert two.multi_get(["b", "a"]) == [b"\x00bytes", b"text"]
    one.multi_set(["c", "d"], ["1", "2"])
    assert two.multi_get(["c", "d"]) == [b"1", b"2"]
    assert two.check(["a", "b"]) and not two.check(["a", "absent"])
    assert two.delete_key("a") and not one.check(["a"])


def test_counting_and_comparing(connect: Connect) -> None:
    one, two = connect(), connect()
    assert (one.add("count", 2), two.add("count", 3)) == (2, 5)
    assert one.compare_set("word", "", "first") == b"first"
    assert two.compare_set("word", "other", "second") == b"first"
    one.append("line", "ab")
    two.append("line", "cd")
    assert one.get("line") == b"abcd"


def test_it_works_behind_a_prefix_as_the_engine_uses_it(connect: Connect) -> None:
    stores = connect(), connect()  # a PrefixStore does not keep a store alive that is written in Python
    one, two = (PrefixStore("deep/", PrefixStore("er/", store)) for store in stores)
    one.set("k", "v")
    assert two.get("k") == b"v"
    assert two.add("n", 4) == 4


def test_a_wait_ends_when_the_key_appears(connect: Connect) -> None:
    one, two = connect(), connect()
    threading.Timer(0.1, two.set, ["late", "here"]).start()
    assert one.get("late") == b"here"


def test_a_wait_ends_at_once_when_the_generation_is_abandoned(connect: Connect) -> None:
    abandoned = threading.Event()
    store = connect(abandoned.is_set, seconds=60.0)
    threading.Timer(0.1, abandoned.set).start()
    start = time.monotonic()
    for wait in (lambda: store.wait(["never"]), lambda: store.get("never"), lambda: store.multi_get(["never", "ever"])):
        with pytest.raises(StepAbandoned, match="stopped waiting for never"):
            wait()
    assert time.monotonic() - start < 2.0


def test_what_is_there_is_given_even_in_an_abandoned_generation(connect: Connect) -> None:
    store = connect(lambda: True)
    store.set("there", "yes")
    assert store.get("there") == b"yes"


def test_a_store_that_was_started_again_is_used() -> None:
    first = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = first.port
    clients = [InterruptibleStore("127.0.0.1", port, lambda: False, timedelta(seconds=5)) for _ in range(4)]
    clients[0].set("old", "gone with the store")
    assert clients[1].get("old") == b"gone with the store"
    del first
    gc.collect()
    second = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    clients[0].set("new", "there")
    assert clients[1].get("new") == b"there"
    assert clients[2].add("count", 1) == 1
    assert not clients[3].check(["old"])
    del second


def test_a_wait_has_a_limit(connect: Connect) -> None:
    with pytest.raises(dist.DistStoreError, match="never did not appear"):
        connect().wait(["never"], timedelta(seconds=0.05))
    store = connect()
    store.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(dist.DistStoreError, match="never did not appear"):
        store.get("never")
