import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.end_to_end.running import MARK, processes, wait_until

from understudy.ledger.reading import Run
from understudy_testkit.faults.assertions import Setup, perform, require_success


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Whatever a test starts is gone when it ends."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    yield value
    wait_until(lambda: not list(processes(value)), f"no process left, but there are {list(processes(value))}", 5.0)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Setup], Run]:
    """The run without faults; one per setup."""
    known: dict[Setup, Run] = {}

    def find(setup: Setup) -> Run:
        if setup not in known:
            folder: Path = tmp_path_factory.mktemp("reference")
            known[setup] = require_success(perform(folder, setup, timeout=240.0)).run
        return known[setup]

    return find
