"""Checks that a device keeps the contract (`understudy.devices.contract`). It needs torch, and one such device.

    from understudy_testkit.conformance import devices

    def test_my_device_conforms() -> None:
        devices.check(MyDevice)

Whether events and collectives are in the right order must be tested elsewhere, with its family of communicators.
"""

from collections.abc import Callable

import torch

from understudy.devices.contract import Device
from understudy_testkit.conformance.rule import NotTried, Rule, check_all, require, tried

_WITHIN = 30.0
MakeDevice = Callable[[], Device]


def check(make: MakeDevice) -> None:
    """NotConforming at the first rule that is broken."""
    device = make()
    if not device.present():
        raise NotTried(f"there is no device {device.name}")
    check_all(RULES, make)


def _is_usable(make: MakeDevice) -> None:
    device = make()
    require(bool(device.name), "it has no name")
    require(isinstance(device.asynchronous, bool), "it does not say whether the host runs ahead of it")
    objection = device.objection({})
    require(objection is None, f"it cannot be protected though nothing is set in the environment: {objection}")


def _is_taken(make: MakeDevice) -> None:
    device = make()
    where = device.take(0)
    require(torch.ones(3, device=where).sum().item() == 3.0, "the device that it gives does not compute")
    require(device.take(0) == where, "taken twice, it is another one")
    require(device.holds(torch.ones(3, device=where)), "a tensor that was made on it is not in its memory")
    of_host = torch.frombuffer(bytearray(8), dtype=torch.uint8)
    require(not (device.asynchronous and device.holds(of_host)), "it takes memory of the host for its own")


def _comes_to_rest(make: MakeDevice) -> None:
    device = make()
    value = torch.zeros(1000, device=device.take(0))
    for _ in range(50):
        value += 1
    event = device.record()
    device.drain(_WITHIN)
    require(event.complete(), "after it has drained, an event that was recorded before is not complete")
    require(bool((value == 50).all()), "after it has drained, not all that was queued has run")
    device.drain(None)
    device.probe(_WITHIN)
    require(device.record().complete() or device.asynchronous, "an event is late on a device that is never behind")


def _copies_to_the_host(make: MakeDevice) -> None:
    device = make()
    value = torch.zeros(1000, device=device.take(0))
    landing = torch.frombuffer(bytearray(4 * 1000), dtype=torch.float32)
    device.pin(landing)
    for _ in range(50):
        value += 1
    event = device.copy_to_host([(value, landing)])
    value += 1
    device.drain(_WITHIN)
    require(event.complete(), "after it has drained, an event behind copies is not complete")
    require(bool((landing == 50).all()), "a copy is not what was in the queue before it")
    device.unpin(landing)
    brought = device.bring(landing)
    require(device.holds(brought) and bool((brought == 50).all()), "what was brought to it is not there")


def _knows_its_own_errors(make: MakeDevice) -> None:
    device = make()
    require(not device.is_lost(ValueError("of the script")), "an error of the script counts as the end of the device")
    require(
        not device.is_lost(RuntimeError("Connection closed by peer")), "a lost peer counts as the end of the device"
    )


def _keeps_its_streams(make: MakeDevice) -> None:
    device = make()
    where = device.take(0)
    torch.ones(1, device=where)  # its streams are in use from now on
    device.seed(7)
    kept = device.random_streams()
    if not kept:
        return
    require(all(stream.is_cpu for stream in kept), "its random streams are not in host memory")
    first = torch.rand(8, device=where).tolist()
    device.set_random_streams(kept)
    require(torch.rand(8, device=where).tolist() == first, "streams that were put back draw other numbers")


RULES: tuple[Rule[Device], ...] = (
    Rule("can be used here", tried(_is_usable)),
    Rule("is taken", tried(_is_taken)),
    Rule("comes to rest", tried(_comes_to_rest)),
    Rule("copies to the host", tried(_copies_to_the_host)),
    Rule("knows its own errors", tried(_knows_its_own_errors)),
    Rule("keeps its random streams", tried(_keeps_its_streams)),
)
