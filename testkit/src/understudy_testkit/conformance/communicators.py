"""Checks that a family of communicators keeps the contract (`understudy.groups.families.contract`). It is the one suite
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

from understudy.devices.contract import Device
from understudy.errors import DeviceLost
from understudy.groups.connecting import Attempt
from understudy.groups.families.contract import CommunicatorFamily
from understudy.groups.store import InterruptibleStore
from understudy.plugins import registry
from understudy.plugins.kinds import DEVICE
from understudy_testkit.conformance.rule import NotConforming, NotTried, Rule, check_all, require, tried

_TIMEOUT = timedelta(seconds=30)
_FREED_WITHIN = 10.0  # seconds from a break to the error; gloo needs milliseconds on a machine that is not busy
_GROUP = "conformance"

MakeFamily = Callable[[], CommunicatorFamily]


def check(make: MakeFamily) -> None:
    """NotConforming at the first rule that is broken."""
    family = make()
    if not _device_of(family).present():
        raise NotTried(f"there is no device {family.device}")
    check_all(RULES, make)


class _Pair:
    """Two ranks and what they are connected by."""

    def __init__(self, family: CommunicatorFamily) -> None:
        self._family = family
        self.device = _device_of(family)
        self.where = self.device.take(0)
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
            for backend in self.backends:
                self.links.hold(_GROUP, backend)
            attempts = [
                Attempt(self._family, backend, unique, handles, _TIMEOUT, self.where) for backend in self.backends
            ]
            for attempt in attempts:
                attempt.wait(lambda: False)

    def passes_on(self, number: float) -> bool:
        sent, got = torch.full((1000,), number, device=self.where), torch.zeros(1000, device=self.where)
        sending = self.backends[0].send([sent], 1, 0)
        self.backends[1].recv([got], 0, 0).wait()
        sending.wait()
        return bool(torch.equal(sent, got))

    def queues(self) -> None:
        """Rank 1 has queued something that rank 0 never sends."""
        self.backends[1].recv([torch.zeros(1, device=self.where)], 0, 0).wait()

    def waits(self) -> tuple[threading.Thread, list[Exception]]:
        """Rank 1 waits for something that rank 0 never sends; the list gets the error that ends it."""
        ended: list[Exception] = []

        def wait() -> None:
            try:
                self.queues()
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


def _says_how_it_is_used(make: MakeFamily) -> None:
    family = make()
    require(isinstance(family.carries_words, bool), "it does not say whether it carries tensors in host memory")
    objection = family.objection({})
    require(objection is None, f"it cannot be protected though nothing is set in the environment: {objection}")
    within = family.connect_within(_TIMEOUT, 2)
    require(timedelta(0) < within <= _TIMEOUT, f"with {_TIMEOUT} for the job it connects within {within}")


def _gives_up(make: MakeFamily) -> None:
    """Nobody is there who could connect."""
    pair, within = _Pair(make()), timedelta(seconds=2)
    handles = [backend.get_reconfigure_handle() for backend in pair.backends]
    begun = time.monotonic()
    try:
        make().connect(pair.backends[0], secrets.randbits(40), handles, within, pair.where)
    except Exception:
        seconds = time.monotonic() - begun
        require(seconds < _FREED_WITHIN, f"it gave up {seconds:.1f} s after it was to do so in {within.seconds} s")
        return
    require(False, "it connected to a peer that did not")


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
    if pair.device.asynchronous:
        _break_the_queue(pair)
    else:
        _break_the_blocked(pair)
    require(pair.links.broken(), "after a break the links do not count as broken")
    pair.links.break_all()  # a thread that frees the main thread does it again and again
    pair.connect()
    require(pair.passes_on(3.5), "after a break the ranks could not be connected again")


def _break_the_blocked(pair: _Pair) -> None:
    thread, ended = pair.waits()
    require(thread.is_alive(), "a receive ended before anything was sent")
    require(pair.links.break_all() > 0, "nothing was there to be broken")
    thread.join(_FREED_WITHIN)
    require(not thread.is_alive(), f"a blocked receive was not freed within {_FREED_WITHIN:g} s")
    require(bool(ended), "a blocked receive that was freed must raise; it returned")


def _break_the_queue(pair: _Pair) -> None:
    """On a device that runs behind its host nobody is blocked, and nobody need be told."""
    pair.queues()
    event = pair.device.record()
    time.sleep(0.2)
    require(not event.complete(), "a receive ended before anything was sent")
    require(pair.links.break_all() > 0, "nothing was there to be broken")
    try:
        pair.device.drain(_FREED_WITHIN)
    except DeviceLost as lost:
        raise NotConforming(f"a receive that hung was not freed within {_FREED_WITHIN:g} s: {lost}") from lost


def _is_alone(make: MakeFamily) -> None:
    family = make()
    where = _device_of(family).take(0)
    backend = family.make(HashStore(), 0, [0], _TIMEOUT)
    own = backend.get_reconfigure_handle()
    Attempt(family, backend, secrets.randbits(40), [own], _TIMEOUT, where).wait(lambda: False)


def _device_of(family: CommunicatorFamily) -> Device:
    device: Device = registry.named(DEVICE, family.device, "its device")
    return device


RULES: tuple[Rule[CommunicatorFamily], ...] = (
    Rule("says what torch calls it", tried(_is_named)),
    Rule("says how it is used", tried(_says_how_it_is_used)),
    Rule("gives up a peer that does not come", tried(_gives_up)),
    Rule("connects two ranks", tried(_connects)),
    Rule("connects a rank to another peer", tried(_connects_again)),
    Rule("frees a rank that is blocked, and connects it again", tried(_frees_the_blocked)),
    Rule("makes a group of one", tried(_is_alone)),
)
