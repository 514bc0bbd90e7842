"""Commands become actions, in order, and decisions become records."""

from collections.abc import Callable

from tests.coordinator.acting import Play, RememberedEffects

from understudy.coordinator.effects import MemoryGenerations
from understudy.foundation.ids import Generation, MemberId, Rank
from understudy.ledger.records import DecisionRecord
from understudy.protocol import commands as cmd
from understudy.protocol.commands import Outcome, RecordGeneration, StopJob
from understudy.protocol.events import MemberConnected, MemberFinished
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.reasons import Code, because
from understudy.protocol.sentences import sentence
from understudy.protocol.state import State


def test_founding_members_are_started_and_told_their_rank_when_they_connect() -> None:
    play = Play()
    play.coordinator.start()
    assert play.effects.take() == [("start", "m-0", 0), ("start", "m-1", 1), ("start", "m-2", None)]
    play.coordinator.handle(MemberConnected(at=0.1, member=MemberId("m-1")))
    (sent,) = play.effects.take()
    assert sent == (
        "send",
        "m-1",
        cmd.AssignRank(
            member=MemberId("m-1"),
            generation=Generation(1),
            founded_in=Generation(1),
            founding=True,
            rank=Rank(1),
            slot=1,
            store=THIS_HOST,
            local_world_size=2,
            world_size=2,
        ),
    )


def test_a_loss_is_carried_out_in_order() -> None:
    play = Play()
    play.begin()
    play.lose("m-1", at=10.0)
    abandon, assign = play.effects.take()
    assert (
        abandon[:2] == ("send", "m-0") and isinstance(abandon[2], cmd.AbandonGeneration) and abandon[2].generation == 2
    )
    assert assign[:2] == ("send", "m-2") and isinstance(assign[2], cmd.AssignRank)
    assert (assign[2].rank, assign[2].founding, assign[2].generation) == (1, False, 2)
    play.report("m-0", 10.1, 2, holds=7)
    play.prepare("m-2", 10.2, 2)
    sent = play.effects.take()
    assert [entry[1] for entry in sent] == ["m-0", "m-2"]
    for entry in sent:
        assert isinstance(entry[2], cmd.ResumeAt)
        assert (entry[2].generation, entry[2].step, entry[2].donors) == (2, 7, ((1, (0,)),))


def test_release_and_stop() -> None:
    play = Play()
    play.begin()
    generation = play.coordinator.machine.generation
    for name in ("m-0", "m-1"):
        play.coordinator.handle(MemberFinished(at=20.0, member=MemberId(name), generation=generation))
    both = (MemberId("m-0"), MemberId("m-1"))
    release = cmd.ReleaseMembers(generation=Generation(1), members=both)
    assert play.effects.take() == [("send", name, release) for name in both]
    play.coordinator.request_stop("SIGTERM was received", 143)
    stop = StopJob(
        outcome=Outcome.STOPPED, reason=because(Code.STOP_REQUESTED, text="SIGTERM was received"), exit_code=143
    )
    assert play.effects.take() == [("stop", stop)]
    assert play.coordinator.next_deadline() is None


def test_every_decision_is_written_with_its_reason() -> None:
    play = Play()
    play.begin()
    play.lose("m-1", at=10.0)
    decision = play.journal.records[-1]
    assert isinstance(decision, DecisionRecord)
    assert (decision.kind, decision.rank, decision.member, decision.generation) == ("swap", 1, "m-1", 2)
    assert decision.code == Code.RANK_LOST and decision.fields["member"] == "m-1"
    assert decision.reason == sentence(decision.why) and "signal 9" in decision.reason


def test_the_account_of_a_job_is_opened_at_its_start() -> None:
    """Not with the first recovery: the thread that writes it would be one that grew."""
    play = Play()
    play.begin()
    assert [account.total for account in play.accounts] == [0.0]
    play.lose("m-1", at=10.0)
    assert len(play.accounts) == 1  # the next when the recovery has ended


def test_a_generation_is_stored_before_anybody_hears_of_it() -> None:
    order: list[str] = []

    class Store(MemoryGenerations):
        def record(self, generation: RecordGeneration, facts: Callable[[], State]) -> None:
            order.append(f"stored {generation.generation}")
            super().record(generation, facts)

    class Effects(RememberedEffects):
        def send(self, member: MemberId, command: cmd.ToMember) -> None:
            order.append(f"sent {command.generation}")
            super().send(member, command)

    play = Play()
    play.coordinator._generations, play.coordinator._effects = Store(), Effects()
    play.begin()
    play.lose("m-1", at=10.0)
    assert order.index("stored 2") < order.index("sent 2")


def test_a_port_that_answers_at_once_does_not_mix_up_two_events() -> None:
    play = Play()
    play.begin()
    lost: list[str] = []

    class Effects(RememberedEffects):
        def send(self, member: MemberId, command: cmd.ToMember) -> None:
            super().send(member, command)
            if isinstance(command, cmd.AbandonGeneration) and not lost:
                lost.append(member)
                play.lose("m-0", at=10.1)

    effects = play.coordinator._effects = Effects()
    play.lose("m-1", at=10.0)
    kinds = [type(entry[2]).__name__ if entry[0] == "send" else entry[0] for entry in effects.done]
    assert kinds[:2] == ["AbandonGeneration", "AssignRank"], "the first event is carried out to its end"
    assert play.coordinator.machine.generation == 3


def test_losses_after_the_end_change_nothing() -> None:
    play = Play()
    play.begin()
    play.coordinator.request_stop("enough", 130)
    play.effects.take()
    play.lose("m-0", at=30.0)
    assert play.effects.take() == []
