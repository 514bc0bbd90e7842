"""A forked worker whose script sets variables of the engine starts again, the usual way; for others it does not."""

import os
from typing import Any

import pytest

from understudy.training import fork_server


class StartedAgain(Exception):
    pass


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_again(*_: Any) -> None:
        raise StartedAgain

    monkeypatch.setattr(fork_server, "_forked_with", dict(os.environ))
    monkeypatch.setattr(fork_server, "_command", ("python", "-u", "train.py"))
    monkeypatch.setattr(os, "execve", start_again)


def test_what_is_read_when_the_engine_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    with pytest.raises(StartedAgain):
        fork_server.start_again_if_unlike_the_others()
    assert "the script sets OMP_NUM_THREADS before it imports torch" in capsys.readouterr().err


def test_what_torch_sets_itself_where_something_is_compiled_above_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/somewhere")
    fork_server.start_again_if_unlike_the_others()


def test_what_is_not_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    fork_server.start_again_if_unlike_the_others()
