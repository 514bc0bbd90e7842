"""What a worker makes of what its agent says, over a real socket."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from understudy.foundation.ids import Generation
from understudy.training.control import ControlLine
from understudy.wire import framing, messages

Kind = TypeVar("Kind", bound=messages.Message)


class AgentEnd:
    """The agent's side of one worker's connection."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        self.control = ControlLine(path, "m-0", "token")
        self._connection, _ = self._listener.accept()

    def say(self, message: messages.Message) -> None:
        self._connection.sendall(framing.frame(messages.encode(message)))

    def say_and_wait(self, *all_: messages.Message) -> None:
        """Until the worker has read them: it answers the question behind them."""
        for message in all_:
            self.say(message)
        self.say(messages.WhichStep(generation=0))
        self._connection.settimeout(30)
        while not isinstance(self._heard(), messages.AtStep):
            pass

    def hear(self, kind: type[Kind]) -> Kind:
        """The next message of that kind."""
        self._connection.settimeout(30)
        while not isinstance(message := self._heard(), kind):
            pass
        return message

    def _heard(self) -> messages.Message:
        data = framing.receive(self._connection)
        assert data is not None
        return messages.decode_from_worker(data)

    def close(self) -> None:
        self._connection.close()
        self._listener.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentEnd]:
    end = AgentEnd(str(tmp_path / "socket"))
    yield end
    end.close()


def test_news_of_an_agreement_in_the_generation_it_is_in_is_taken(agent: AgentEnd) -> None:
    agent.say_and_wait(messages.Agreed(generation=1, step=6))
    assert agent.control.agreed == 6


def test_news_that_come_after_a_newer_generation_are_too_late(agent: AgentEnd) -> None:
    """The copy of step 6 may have been reported to it by then, and everybody told to go back to that."""
    agent.say_and_wait(
        messages.Agreed(generation=1, step=6),
        messages.Abandon(generation=2, reason="a rank was lost"),
        messages.Agreed(generation=1, step=7),
    )
    assert agent.control.agreed == 6
    agent.say_and_wait(messages.Agreed(generation=2, step=8))
    assert agent.control.agreed == 8


def test_files_are_looked_at_only_when_somebody_asks_and_the_control_thread_answers_meanwhile(agent: AgentEnd) -> None:
    """A file system that stalls for long makes nobody deaf, and costs a recovery that needs no checkpoint nothing."""
    looked, go_on = threading.Event(), threading.Event()

    def slow_disk() -> tuple[int, ...]:
        looked.set()
        go_on.wait(30)
        return (40, 80)

    plans: list[messages.Resume | None] = []
    waiting = threading.Thread(target=lambda: plans.append(agent.control.await_plan(Generation(2), slow_disk)))
    agent.say_and_wait(messages.Abandon(generation=2, reason="a rank was lost"))
    agent.control.notice()
    waiting.start()
    agent.say_and_wait(messages.WhichCheckpoints(generation=1))
    assert not looked.is_set(), "nobody has asked in this generation"
    agent.say(messages.WhichCheckpoints(generation=2))
    assert looked.wait(30)
    agent.say(messages.AskActivity(number=5))
    answer = agent.hear(messages.ActivityReport)
    assert answer.number == 5 and answer.heard == 2 and answer.control_thread
    go_on.set()
    assert agent.hear(messages.CheckpointList).steps == (40, 80)
    looked.clear()
    agent.say(messages.WhichCheckpoints(generation=2))
    assert agent.hear(messages.CheckpointList).steps == (40, 80) and not looked.is_set(), "it is said again"
    agent.say(messages.Resume(generation=2, step=80, donors={}, reason="the newest checkpoint"))
    waiting.join(30)
    assert plans[0] is not None and plans[0].step == 80


def test_a_member_waits_for_word_without_an_end(agent: AgentEnd) -> None:
    """No coordinator may be there for long, and what this process holds must not be lost for that."""
    waiting = threading.Thread(target=agent.control.await_abandonment, args=(Generation(1),))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    agent.say_and_wait(messages.Abandon(generation=2, reason="a coordinator is back"))
    waiting.join(30)
    assert not waiting.is_alive()
