"""A greeting with and without what the host says of itself. What is over the limits is refused."""

from typing import Any

import msgspec
import pytest
from tests.coordinator.lines import greeting

from understudy.errors import WireError
from understudy.wire import host_messages as wire
from understudy.wire.inventory import Device, HostInventory

FULL = HostInventory(
    host_name="n" * 200,
    addresses=tuple(f"10.0.0.{number}" for number in range(64)),
    pod="trainer-0",
    devices=tuple(Device(slot=slot, uuid=f"GPU-{slot}", pci_bus_id="0000:17:00.0") for slot in range(64)),
)


@pytest.mark.parametrize("inventory", [None, HostInventory(), FULL])
def test_a_greeting_arrives_as_it_was_sent(inventory: HostInventory | None) -> None:
    sent = greeting(inventory=inventory)
    assert wire.decode_from_host(wire.encode(sent)) == sent


def test_a_greeting_of_an_agent_that_knows_nothing_of_it() -> None:
    old = msgspec.to_builtins(greeting())
    del old["inventory"]
    assert wire.decode_from_host(msgspec.msgpack.encode(old)) == greeting()


@pytest.mark.parametrize(
    "wrong",
    [
        {"host_name": "n" * 201},
        {"host_name": 7},
        {"pod": "p" * 201},
        {"addresses": ["10.0.0.1"] * 65},
        {"addresses": ["a" * 201]},
        {"devices": [{"slot": 0}] * 65},
        {"devices": [{"slot": -1}]},
        {"devices": [{"slot": 1024}]},
        {"devices": [{"uuid": "GPU-0"}]},
        {"devices": [{"slot": 0, "uuid": "u" * 201}]},
        [],
    ],
)
def test_what_is_over_the_limits_is_refused(wrong: Any) -> None:
    told = {**msgspec.to_builtins(greeting()), "inventory": wrong}
    with pytest.raises(WireError):
        wire.decode_from_host(msgspec.msgpack.encode(told))


def test_what_a_newer_version_says_of_itself_is_ignored() -> None:
    """Before, one more field made the whole greeting malformed, and the agent tried for ever."""
    said = {"host_name": "n", "rack": 7, "devices": [{"slot": 0, "memory": 80}]}
    told = {**msgspec.to_builtins(greeting()), "inventory": said}
    known = HostInventory(host_name="n", devices=(Device(slot=0),))
    assert wire.decode_from_host(msgspec.msgpack.encode(told)) == greeting(inventory=known)
