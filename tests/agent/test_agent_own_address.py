"""Under which address the other hosts of a job reach this one."""

import asyncio
import socket

import pytest

from understudy.agent import own_address as module
from understudy.agent.own_address import address_towards, chosen, own_address
from understudy.foundation.clock import SystemClock


@pytest.mark.parametrize(
    ("coordinators", "ways", "others", "expected"),
    [
        (["boss:1"], ["10.0.1.7"], [], "10.0.1.7"),
        (["me:1", "boss:1"], ["127.0.0.1", "10.0.1.7"], ["192.168.0.1"], "10.0.1.7"),
        (["gone:1", "boss:1"], [None, "10.0.1.7"], [], "10.0.1.7"),
        (["127.0.0.1:1"], ["127.0.0.1"], ["10.0.1.7"], "127.0.0.1"),
        (["localhost:1", "127.0.0.1:2"], ["127.0.0.1", "127.0.0.1"], ["10.0.1.7"], "127.0.0.1"),
        (["me:1"], ["127.0.0.1"], ["fd00::7", "10.0.1.7"], "10.0.1.7"),
        (["me:1"], ["127.0.0.1"], [], "127.0.0.1"),
        (["unknown:1"], [None], ["10.0.1.7"], "10.0.1.7"),
    ],
)
def test_which_address_is_chosen(
    coordinators: list[str], ways: list[str | None], others: list[str], expected: str
) -> None:
    """A name that means the loopback interface here (127.0.1.1 on Debian) is of no use elsewhere."""
    assert chosen(coordinators, ways, others) == expected


def test_the_kernel_is_asked_and_nothing_is_sent() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.setblocking(False)
        assert address_towards(f"127.0.0.1:{listening.getsockname()[1]}") == "127.0.0.1"
        with pytest.raises(BlockingIOError):
            listening.recv(1)


def test_a_name_that_comes_later_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([None, None, "10.0.1.7"])
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    found = own_address(["boss:1"], ["10.9.9.9"], SystemClock(), seen_from=lambda _: next(answers))
    assert asyncio.run(found) == "10.0.1.7"
    never = own_address(["boss:1"], ["10.9.9.9"], SystemClock(), patience=0.0, seen_from=lambda _: None)
    assert asyncio.run(never) == "10.9.9.9"
