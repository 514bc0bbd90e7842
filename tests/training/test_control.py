"""What a worker makes of what its agent says, over a real socket."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from understudy.foundation.ids import Generation, MemberId, StepNumber
from understudy.protocol import commands as cmd
from understudy.protocol import events as ev
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.reasons import Code, because
from understudy.training.control import ControlLine
from understudy.wire import framing, messages

Kind = TypeVar("Kind", bound=messages.Message | ev.Event)
M = (MemberId("m-0"),)


def agreed(generation: int, step: int) -> cmd.KeepAgreed:
    return cmd.KeepAgreed(generation=Generation(generation), members=M, step=StepNumber(step))


def abandon(generation: int, reason: str = "a rank was lost") -> cmd.AbandonGeneration:
    return cmd.AbandonGeneration(generation=Generation(generation), members=M, reason=because(Code.TOLD, text=reason))


def ask(generation: int) -> cmd.AskCheckpoints:
    return cmd.AskCheckpoints(generation=Generation(generation), members=M)


class AgentEnd:
    """The agent's side of one worker's connection."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        self.control = ControlLine(path, "m-0", "token")
        self._connection, _ = self._listener.accept()

    def say(self, message: messages.Message | cmd.Command) -> None:
        self._connection.sendall(framing.frame(messages.encode(message)))

    def say_and_wait(self, *all_: messages.Message | cmd.Command) -> None:
        """Until the worker has read them: it answers the question behind them."""
        for message in all_:
            self.say(message)
        self.say(cmd.AskStep(generation=Generation(0), members=M))
        self._connection.settimeout(30)
        while not isinstance(self._heard(), ev.StepTold):
            pass

    def hear(self, kind: type[Kind]) -> Kind:
        """The next message of that kind."""
        self._connection.settimeout(30)
        while not isinstance(message := self._heard(), kind):
            pass
        return message

    def _heard(self) -> messages.FromWorker:
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
    agent.say_and_wait(agreed(1, 6))
    assert agent.control.agreed == 6


def test_news_that_come_after_a_newer_generation_are_too_late(agent: AgentEnd) -> None:
    """The copy of step 6 may have been reported to it by then, and everybody told to go back to that."""
    agent.say_and_wait(
        agreed(1, 6),
        abandon(2),
        agreed(1, 7),
    )
    assert agent.control.agreed == 6
    agent.say_and_wait(agreed(2, 8))
    assert agent.control.agreed == 8


def test_files_are_looked_at_only_when_somebody_asks_and_the_control_thread_answers_meanwhile(agent: AgentEnd) -> None:
    """A file system that stalls for long makes nobody deaf, and costs a recovery that needs no checkpoint nothing."""
    looked, go_on = threading.Event(), threading.Event()

    def slow_disk() -> tuple[StepNumber, ...]:
        looked.set()
        go_on.wait(30)
        return (StepNumber(40), StepNumber(80))

    plans: list[cmd.ResumeAt | None] = []
    waiting = threading.Thread(target=lambda: plans.append(agent.control.await_plan(Generation(2), slow_disk)))
    agent.say_and_wait(abandon(2))
    agent.control.notice()
    waiting.start()
    agent.say_and_wait(ask(1))
    assert not looked.is_set(), "nobody has asked in this generation"
    agent.say(ask(2))
    assert looked.wait(30)
    agent.say(messages.AskActivity(number=5))
    answer = agent.hear(messages.ActivityReport)
    assert answer.number == 5 and answer.heard == 2 and answer.control_thread
    go_on.set()
    assert agent.hear(ev.CheckpointsTold).steps == (40, 80)
    looked.clear()
    agent.say(ask(2))
    assert agent.hear(ev.CheckpointsTold).steps == (40, 80) and not looked.is_set(), "it is said again"
    plan = cmd.ResumeAt(
        generation=Generation(2),
        step=StepNumber(80),
        members=M,
        donors=(),
        store=THIS_HOST,
        reason=because(Code.TOLD, text="the newest checkpoint"),
    )
    agent.say(plan)
    waiting.join(30)
    assert plans[0] is not None and plans[0].step == 80


def test_a_member_waits_for_word_without_an_end(agent: AgentEnd) -> None:
    """No coordinator may be there for long, and what this process holds must not be lost for that."""
    waiting = threading.Thread(target=agent.control.await_abandonment, args=(Generation(1),))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    agent.say_and_wait(abandon(2, "a coordinator is back"))
    waiting.join(30)
    assert not waiting.is_alive()


def test_what_was_told_of_a_recovery_is_told_again_with_what_was_measured(agent: AgentEnd) -> None:
    """A coordinator that took over sends the plan again: its ledger wants the times too."""
    control, generation = agent.control, Generation(2)
    measured = messages.Measured(generation=generation, timings={"regroup": 0.1})
    resumed = ev.MemberResumed(at=ev.UNTIMED, member=control.member, generation=generation)
    for said in (measured, resumed):
        control.send(said)
    plan = cmd.ResumeAt(
        generation=generation,
        step=StepNumber(3),
        members=M,
        donors=(),
        store=THIS_HOST,
        reason=because(Code.TOLD, text="again"),
    )
    for _ in range(2):
        assert (agent.hear(messages.Measured), agent.hear(ev.MemberResumed)) == (measured, resumed)
        agent.say(plan)


@pytest.mark.parametrize("role", ["leavers", "takers", None])
def test_a_member_finds_its_own_part_in_a_move(agent: AgentEnd, role: str | None) -> None:
    others = (MemberId("m-7"), *M)
    command = cmd.AbandonGeneration(
        generation=Generation(2),
        members=M,
        reason=because(Code.TOLD, text="rank 0 moves"),
        leavers=others if role == "leavers" else (),
        takers=others if role == "takers" else (),
    )
    agent.say_and_wait(command)
    assert (agent.control.leaving, agent.control.taking) == (role == "leavers", role == "takers")
