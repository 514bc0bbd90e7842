"""With which exit code an agent ends that a signal has made leave."""

import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from understudy.cli.run_on_host import Departure
from understudy.protocol.commands import StopJob


@pytest.mark.parametrize(
    ("number", "ranks", "leave_code", "expected"),
    [
        (signal.SIGTERM, [], None, 143),
        (signal.SIGTERM, [], 0, 0),
        (signal.SIGTERM, [], 7, 7),
        (signal.SIGTERM, [2], 0, 143),
        (signal.SIGINT, [], 0, 130),
    ],
)
def test_the_code_of_a_host_that_leaves(
    number: signal.Signals, ranks: list[int], leave_code: int | None, expected: int
) -> None:
    """Ranks that are still there are lost with it, and somebody at a terminal is no scheduler."""
    stops: list[StopJob] = []
    workers = {f"m-{rank}": SimpleNamespace(rank=rank) for rank in ranks}
    supervisor = SimpleNamespace(workers=workers, stopping=False, stop=stops.append)
    request = SimpleNamespace(drain_grace=0.0, leave_code=leave_code, plan=SimpleNamespace(host="a"))
    Departure(cast(Any, request), cast(Any, supervisor), cast(Any, None), lambda *_, **__: None).on_signal(number)
    assert [stop.exit_code for stop in stops] == [expected]
