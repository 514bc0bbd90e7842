"""How long each phase took, on hand-made times."""

import pytest
from tests.coordinator.acting import Play

from understudy.coordinator.recovery_clock import RecoveryClock
from understudy.foundation.ids import Generation, MemberId, Rank, StepNumber
from understudy.ledger.records import TransferRecord
from understudy.protocol.commands import DecisionKind, RecordDecision, RecordGeneration
from understudy.protocol.events import PositionReported, Tick
from understudy.protocol.positions import Position
from understudy.protocol.reasons import Code, because
from understudy.protocol.requests import AbortGeneration
from understudy.wire.messages import Measured


def test_the_phases_of_one_recovery() -> None:
    play = Play()
    play.begin()
    play.coordinator.lost_since(MemberId("m-1"), 9.9)
    play.lose("m-1", at=10.0)
    play.report("m-0", 10.2, 2, holds=7)
    play.prepare("m-2", 10.5, 2)
    play.resume("m-0", 10.8, 2, regroup=0.10, transfer=0.01)
    play.resume("m-2", 10.9, 2, received=1000, regroup=0.08, transfer=0.20)
    (record,) = play.journal.recoveries
    assert record.swaps == ((1, "m-1", "m-2"),)
    assert (record.first_generation, record.generation, record.step) == (2, 2, 7)
    assert (record.opened_at, record.at, record.received_bytes) == (10.0, 10.9, 1000)
    assert record.verdict.startswith("retry: ") and len(record.reasons) == 1
    assert list(record.phases) == ["detect", "stop", "rehearse", "regroup", "transfer", "resume", "total"]
    assert list(record.phases.values()) == pytest.approx([0.1, 0.2, 0.5, 0.1, 0.2, 0.4, 1.0])


def test_a_second_loss_belongs_to_the_same_recovery() -> None:
    play = Play()
    play.begin()
    play.lose("m-1", at=10.0)
    play.report("m-0", 10.1, 2, holds=7)
    play.lose("m-2", at=11.0)  # the joiner dies in its rehearsal
    play.report("m-0", 11.1, 3, holds=7)
    play.prepare("m-3", 14.0, 3)
    play.resume("m-0", 14.5, 3)
    play.resume("m-3", 14.6, 3)
    (record,) = play.journal.recoveries
    assert record.swaps == ((1, "m-1", "m-3"),)
    assert (record.first_generation, record.generation) == (2, 3)
    assert len(record.reasons) == 2
    assert "detect" not in record.phases, "nobody knows when it died"
    assert record.phases["rehearse"] == pytest.approx(3.0)
    assert record.phases["stop"] == pytest.approx(1.1)
    assert record.phases["total"] == pytest.approx(4.6)


def test_a_false_alarm_has_no_swaps() -> None:
    play = Play()
    play.begin()
    play.coordinator.lost_since(None, 20.0)
    play.coordinator.handle(AbortGeneration(at=30.0, reason="an operator wants it"))
    for name in ("m-0", "m-1"):
        play.report(name, 30.1, 2, holds=5)
    for name in ("m-0", "m-1"):
        play.resume(name, 30.3, 2)
    (record,) = play.journal.recoveries
    assert record.swaps == () and record.phases["detect"] == pytest.approx(10.0)
    assert "rehearse" not in record.phases


def test_what_members_measured_in_an_abandoned_generation_does_not_count() -> None:
    play = Play()
    play.begin()
    play.lose("m-1", at=10.0)
    play.report("m-0", 10.1, 2, holds=7)
    play.prepare("m-2", 10.2, 2)
    play.resume("m-0", 10.3, 2, regroup=99.0)
    play.lose("m-2", at=10.4)
    play.report("m-0", 10.5, 3, holds=7)
    play.prepare("m-3", 12.0, 3)
    late = TransferRecord(receiver=1, given={0: 5}, seconds=0.1, checked=3)
    play.coordinator.measured(Measured(generation=2, timings={"regroup": 77.0}, transfer=late))
    play.resume("m-0", 12.1, 3, regroup=0.1)
    play.resume("m-3", 12.2, 3, regroup=0.1)
    (record,) = play.journal.recoveries
    assert record.phases["regroup"] == pytest.approx(0.1) and record.received_bytes == 0


def test_a_rank_that_comes_back_was_replaced_then_and_not_when_its_spare_began_to_prepare() -> None:
    clock = RecoveryClock()
    founders = tuple((Rank(rank), MemberId(f"m-{rank}")) for rank in range(3))
    clock.on_command(Tick(at=0.0), _recorded(1, founders))
    clock.on_command(Tick(at=10.0), _decided(10.0, 2, DecisionKind.SWAP))
    clock.on_command(Tick(at=10.0), _recorded(2, (founders[0], founders[2]), absent=1))
    degraded = clock.on_command(Tick(at=10.1), _decided(10.1, 2, DecisionKind.RESUMED))
    assert degraded is not None and degraded.swaps == ()
    back = (founders[0], (Rank(1), MemberId("m-3")), founders[2])
    clock.on_command(Tick(at=20.0), _recorded(2, back, absent=1))
    clock.on_command(Tick(at=30.0), _decided(30.0, 3, DecisionKind.MOVE))
    clock.on_command(Tick(at=30.0), _recorded(3, back))
    whole = clock.on_command(Tick(at=30.2), _decided(30.2, 3, DecisionKind.RESUMED))
    assert whole is not None and whole.planned and whole.swaps == ((1, "m-1", "m-3"),)


WHY = because(Code.REQUESTED, text="a test wants it")


def _recorded(
    generation: int, holders: tuple[tuple[Rank, MemberId], ...], absent: int | None = None
) -> RecordGeneration:
    gone = () if absent is None else (Rank(absent),)
    return RecordGeneration(generation=Generation(generation), founded_in=Generation(1), holders=holders, absent=gone)


def _decided(at: float, generation: int, kind: DecisionKind) -> RecordDecision:
    return RecordDecision(at=at, generation=Generation(generation), kind=kind, reason=WHY, step=StepNumber(5))


def test_a_benched_member_reports_before_training_stops() -> None:
    clock = RecoveryClock()
    members = tuple((Rank(rank), MemberId(f"m-{rank}")) for rank in range(2))
    clock.on_command(Tick(at=0.0), _recorded(1, members))
    clock.on_command(Tick(at=10.0), _recorded(2, members, absent=1))
    clock.on_command(Tick(at=30.0), _decided(30.0, 3, DecisionKind.MOVE))
    clock.on_command(Tick(at=30.0), _recorded(3, members))
    for number, at in ((1, 30.1), (0, 31.0)):
        position = Position(holds=StepNumber(5))
        clock.on_event(PositionReported(at=at, member=members[number][1], generation=Generation(3), position=position))
    whole = clock.on_command(Tick(at=31.2), _decided(31.2, 3, DecisionKind.RESUMED))
    assert whole is not None and whole.phases["approach"] == pytest.approx(1.0)
    assert whole.phases["total"] == pytest.approx(0.2)
