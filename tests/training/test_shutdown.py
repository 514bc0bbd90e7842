"""A process that is done ends when its threads rest, and does not wait forever for one that never does."""

import threading
import time

import pytest

from understudy.training import shutdown


def test_it_waits_for_a_thread_that_still_runs() -> None:
    over = time.monotonic() + 0.2
    busy = threading.Thread(target=lambda: [None for _ in iter(lambda: time.monotonic() < over, False)])
    busy.start()
    shutdown.wait_for_quiescence()
    assert time.monotonic() >= over
    busy.join()


def test_it_gives_up_on_one_that_never_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "_REST_LIMIT", 0.05)
    done = threading.Event()
    busy = threading.Thread(target=lambda: [None for _ in iter(done.is_set, True)])
    busy.start()
    shutdown.wait_for_quiescence()
    assert busy.is_alive()
    done.set()
    busy.join()
