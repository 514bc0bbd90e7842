"""Nobody acts on a generation before it is recorded, however long that takes; and not at all if it fails."""

import asyncio
from collections.abc import Callable

from tests.coordinator.acting import Play, RememberedEffects

from understudy.errors import Deposed
from understudy.foundation.ids import Generation, MemberId
from understudy.ledger.records import DecisionRecord, RecoveryRecord
from understudy.protocol import commands as cmd
from understudy.protocol.commands import RecordGeneration, StopJob
from understudy.protocol.events import MemberConnected
from understudy.protocol.reasons import Code, because
from understudy.protocol.state import State


class SlowGenerations:
    """Writes when the test says so."""

    def __init__(self) -> None:
        self.facts: list[State] = []
        self.open: list[asyncio.Future[None]] = []

    def record(self, generation: RecordGeneration, facts: Callable[[], State]) -> "asyncio.Future[None]":
        assert facts().round.generation >= generation.generation
        self.facts.append(facts())
        self.open.append(asyncio.get_running_loop().create_future())
        return self.open[-1]

    async def write(self) -> None:
        """Everything that is asked for, and what follows from it."""
        while self.open:
            self.open.pop(0).set_result(None)
            await asyncio.sleep(0)


async def trained(effects: RememberedEffects | None = None) -> tuple[Play, SlowGenerations]:
    play, store = Play(), SlowGenerations()
    play.coordinator._generations = store
    if effects is not None:
        play.effects = play.coordinator._effects = effects
    play.begin()
    await store.write()
    play.effects.take()
    return play, store


def sent(play: Play, kind: type[cmd.ToMember]) -> list[object]:
    return [entry[1] for entry in play.effects.done if entry[0] == "send" and isinstance(entry[2], kind)]


def test_orders_wait_for_the_record_and_events_are_taken_meanwhile() -> None:
    async def scene() -> None:
        play, store = await trained()
        play.lose("m-1", at=10.0)
        assert play.effects.done == [] and play.coordinator.machine.generation == 2
        play.lose("m-2", at=10.1)
        assert play.effects.done == [] and play.coordinator.machine.generation == 3
        assert len(store.open) == 1, "one at a time"
        await store.write()
        abandoned = [entry[2] for entry in play.effects.done if isinstance(entry[-1], cmd.AbandonGeneration)]
        assert [message.generation for message in abandoned if isinstance(message, cmd.AbandonGeneration)] == [2, 3]

    asyncio.run(scene())


def test_what_is_recorded_is_what_is_known_by_then() -> None:
    """The second loss came while the first was being written: the second record knows both."""

    async def scene() -> None:
        play, store = await trained()
        store.facts.clear()
        play.lose("m-1", at=10.0)
        play.lose("m-2", at=10.1)
        await store.write()
        assert [facts.round.generation for facts in store.facts] == [2, 3]
        assert {member.id for member in store.facts[-1].roster.members.values()} == {"m-0", "m-3"}

    asyncio.run(scene())


def test_a_coordinator_that_may_not_record_does_nothing_any_more() -> None:
    async def scene() -> None:
        play, store = await trained()
        failures: list[BaseException] = []
        play.coordinator.when_failed(failures.append)
        play.lose("m-1", at=10.0)
        store.open.pop().set_exception(Deposed("term 1 is over"))
        await asyncio.sleep(0)
        assert [type(error) for error in failures] == [Deposed]
        play.lose("m-0", at=11.0)
        play.coordinator.request_stop("enough", 1)
        play.coordinator.tick()
        await asyncio.sleep(0)
        assert play.effects.done == [] and store.open == []

    asyncio.run(scene())


def test_a_record_whose_writing_was_cancelled_is_no_record() -> None:
    async def scene() -> None:
        play, store = await trained()
        play.lose("m-1", at=10.0)
        store.open.pop().cancel()
        await asyncio.sleep(0)
        assert play.effects.done == [] and play.coordinator.failed is not None

    asyncio.run(scene())


def test_the_end_of_the_job_is_recorded_before_anybody_hears_of_it() -> None:
    async def scene() -> None:
        play, store = await trained()
        play.coordinator.request_stop("enough", 130)
        assert play.effects.done == []
        await store.write()
        assert [entry[0] for entry in play.effects.done] == ["stop"]
        assert store.facts[-1].ending.stopped is not None and store.facts[-1].ending.stopped.reason == because(
            Code.STOP_REQUESTED, text="enough"
        )

    asyncio.run(scene())


def test_a_port_that_answers_at_once_after_a_record_does_not_mix_up_two_events() -> None:
    """The answer comes from within the sending to the first of two members."""

    async def scene() -> None:
        class Effects(RememberedEffects):
            def send(self, member: MemberId, command: cmd.ToMember) -> None:
                super().send(member, command)
                if isinstance(command, cmd.AbandonGeneration) and command.generation == 2 and member == "m-0":
                    play.lose("m-0", at=10.1)

        effects = Effects()
        play, store = await trained(effects)
        play.lose("m-1", at=10.0)
        await store.write()
        kinds = [(entry[1], type(entry[2]).__name__) for entry in effects.done if entry[0] == "send"]
        assert kinds[:2] == [("m-0", "AbandonGeneration"), ("m-2", "AssignRank")], (
            "the first event is carried out to its end"
        )
        assert play.coordinator.machine.generation >= 3

    asyncio.run(scene())


def test_the_ledger_keeps_the_order_of_decisions_and_recoveries() -> None:
    async def scene() -> None:
        play, store = await trained()
        play.lose("m-1", at=10.0)
        await store.write()
        play.report("m-0", 10.1, 2, holds=7)
        play.prepare("m-2", 10.2, 2)
        play.resume("m-0", 10.5, 2)
        play.resume("m-2", 10.6, 2)
        assert play.journal.recoveries == [], "not before the record is written"
        await store.write()
        *_, decision, recovery = play.journal.records
        assert isinstance(decision, DecisionRecord) and decision.kind == "resumed"
        assert isinstance(recovery, RecoveryRecord)

    asyncio.run(scene())


def test_a_replacement_gets_what_the_rank_left_and_only_of_its_own_world() -> None:
    async def scene() -> None:
        play, store = await trained()
        play.coordinator.inherited(MemberId("m-1"), b"left by rank 1")
        play.lose("m-1", at=10.0)
        await store.write()
        (assign,) = [entry[2] for entry in play.effects.done if isinstance(entry[-1], cmd.AssignRank)]
        assert isinstance(assign, cmd.AssignRank) and assign.bequest == b"left by rank 1"
        play.coordinator.machine.round.state.founded_in = Generation(2)  # as if the world had started over
        play.effects.take()
        play.lose("m-2", at=11.0)
        await store.write()
        play.coordinator.handle(MemberConnected(at=11.1, member=MemberId("m-3")))
        (assign,) = [entry[2] for entry in play.effects.done if isinstance(entry[-1], cmd.AssignRank)]
        assert isinstance(assign, cmd.AssignRank) and (assign.rank, assign.bequest) == (1, b"")

    asyncio.run(scene())


def test_a_stop_ends_the_deadlines() -> None:
    async def scene() -> None:
        play, store = await trained()
        play.lose("m-1", at=10.0)
        assert play.coordinator.next_deadline() is not None
        play.coordinator.request_stop("enough", 1)
        await store.write()
        assert play.coordinator.next_deadline() is None
        assert isinstance(play.effects.done[-1][1], StopJob)

    asyncio.run(scene())
