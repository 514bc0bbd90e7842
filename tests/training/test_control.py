"""What a worker makes of what its agent says, over a real socket."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy.training.control import ControlLine
from understudy.wire import framing, messages


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
