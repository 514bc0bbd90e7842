"""Checks that a family of communicators keeps the contract (`understudy.groups.communicators`). It is the one suite
that needs torch: two ranks live in one process, each with a backend of its own.

    from understudy_testkit.conformance import communicators

    def test_my_family_conforms() -> None:
        communicators.check(MyFamily)

Collectives, devices and several hosts must be tested elsewhere.
"""

import secrets
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore

from understudy.groups.communicators import CommunicatorFamily
from understudy.groups.connecting import Attempt
from understudy.groups.store import InterruptibleStore
from understudy_testkit.conformance.rule import NotConforming, Rule, check_all, require

_TIMEOUT = timedelta(seconds=30)
_FREED_WITHIN = 10.0  # seconds from a break to the error; gloo needs milliseconds on a machine that is not busy
_GROUP = "conformance"

MakeFamily = Callable[[], CommunicatorFamily]


def check(make: MakeFamily) -> None:
    """NotConforming at the first rule that is broken."""
    check_all(RULES, make)


class _Pair:
    """Two ranks and what they are connected by."""

    def __init__(self, family: CommunicatorFamily) -> None:
        self._family = family
        self._server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._stores: list[InterruptibleStore] = []  # torch does not keep an object of Python alive
        self.links = family.links(lambda _: True, lambda _: None)
        self.backends = [self._make(place) for place in range(2)]

    def _make(self, place: int) -> Any:
        store = InterruptibleStore("127.0.0.1", self._server.port, lambda: False, _TIMEOUT)
        store.overheard = self.links.hear
        self._stores.append(store)
        return self._family.make(store, place, [0, 1], _TIMEOUT)

    def replace(self, place: int) -> None:
        """Another process holds that rank now."""
        self.backends[place] = self._make(place)

    def connect(self) -> None:
        handles = [backend.get_reconfigure_handle() for backend in self.backends]
        unique = secrets.randbits(40)
        with self.links.forming(_GROUP, fresh=True):
            for handle in handles:
                self.links.hear(handle.encode())
            attempts = [Attempt(backend, unique, handles, _TIMEOUT) for backend in self.backends]
            for attempt in attempts:
                attempt.wait(lambda: False)

    def passes_on(self, number: float) -> bool:
        sent, got = torch.full((1000,), number), torch.zeros(1000)
        sending = self.backends[0].send([sent], 1, 0)
        self.backends[1].recv([got], 0, 0).wait()
        sending.wait()
        return bool(torch.equal(sent, got))

    def waits(self) -> tuple[threading.Thread, list[Exception]]:
        """Rank 1 waits for something that rank 0 never sends; the list gets the error that ends it."""
        ended: list[Exception] = []

        def wait() -> None:
            try:
                self.backends[1].recv([torch.zeros(1)], 0, 0).wait()
            except Exception as error:
                ended.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        time.sleep(0.2)
        return thread, ended


def _is_named(make: MakeFamily) -> None:
    family = make()
    require(bool(family.backend), "it has no name that init_process_group would take")
    known = isinstance(family.backend_type, dist.ProcessGroup.BackendType)
    require(known, f"its backend_type is {family.backend_type!r}, which is none of torch's")
    require(family.backend_type != dist.ProcessGroup.BackendType.CUSTOM, "CUSTOM is what a joiner's sandbox has")


def _connects(make: MakeFamily) -> None:
    pair = _Pair(make())
    pair.connect()
    require(pair.passes_on(1.5), "what one rank sent did not arrive as it was")
    require(not pair.links.broken(), "its links count as broken while both ranks are well")


def _connects_again(make: MakeFamily) -> None:
    pair = _Pair(make())
    pair.connect()
    pair.passes_on(1.0)
    pair.replace(1)
    pair.connect()
    require(pair.passes_on(2.5), "after a rank was replaced, what was sent did not arrive as it was")


def _frees_the_blocked(make: MakeFamily) -> None:
    pair = _Pair(make())
    pair.connect()
    thread, ended = pair.waits()
    require(thread.is_alive(), "a receive ended before anything was sent")
    require(pair.links.break_all() > 0, "nothing was there to be broken")
    thread.join(_FREED_WITHIN)
    require(not thread.is_alive(), f"a blocked receive was not freed within {_FREED_WITHIN:g} s")
    require(bool(ended), "a blocked receive that was freed must raise; it returned")
    require(pair.links.broken(), "after a break the links do not count as broken")
    pair.connect()
    require(pair.passes_on(3.5), "after a break the ranks could not be connected again")


def _is_alone(make: MakeFamily) -> None:
    backend = make().make(HashStore(), 0, [0], _TIMEOUT)
    Attempt(backend, secrets.randbits(40), [backend.get_reconfigure_handle()], _TIMEOUT).wait(lambda: False)


def _tried(rule: Callable[[MakeFamily], None]) -> Callable[[MakeFamily], None]:
    """An error is a broken rule, too."""

    def tried(make: MakeFamily) -> None:
        try:
            rule(make)
        except NotConforming:
            raise
        except Exception as error:
            raise NotConforming(f"it raised {type(error).__name__}: {error}") from error

    return tried


RULES: tuple[Rule[CommunicatorFamily], ...] = (
    Rule("says what torch calls it", _tried(_is_named)),
    Rule("connects two ranks", _tried(_connects)),
    Rule("connects a rank to another peer", _tried(_connects_again)),
    Rule("frees a rank that is blocked, and connects it again", _tried(_frees_the_blocked)),
    Rule("makes a group of one", _tried(_is_alone)),
)
