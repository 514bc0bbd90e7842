"""For all tests."""

import os
import sys
from collections.abc import Iterator

import hypothesis
import pytest

# A busy machine may pause any example for a second; tests that measure time do so by themselves.
hypothesis.settings.register_profile("understudy", deadline=None)
hypothesis.settings.load_profile("understudy")

_status = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_status] = int(exitstatus)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """A module that leaves a process group behind breaks whichever module runs after it in the same process."""
    yield
    engine = sys.modules.get("torch.distributed")
    if engine is None or (nextitem is not None and nextitem.path == item.path) or not engine.is_initialized():
        return
    engine.destroy_process_group()
    pytest.fail(f"{item.path.name} leaves torch's default process group behind")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """The run is over and its summary is printed. To tear down what tests have left of torch's process groups can call
    std::terminate in a thread of theirs (seen now and then), and then the exit code says nothing about the tests."""
    if "torch" in sys.modules and _status in config.stash:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash[_status])
