"""Effects that are only remembered, and a job of two ranks that a test plays through by hand."""

from dataclasses import dataclass, field

from understudy.coordinator.coordinator import Coordinator
from understudy.foundation.clock import SetClock
from understudy.foundation.ids import Generation, MemberId, StepNumber
from understudy.ledger.goodput import Goodput
from understudy.ledger.records import DecisionRecord, RecoveryRecord, TransferRecord
from understudy.protocol import commands as cmd
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.job import JobMachine
from understudy.protocol.policy import Policy
from understudy.protocol.positions import Position
from understudy.protocol.sentences import sentence
from understudy.wire.messages import Measured


@dataclass
class RememberedEffects:
    done: list[tuple[object, ...]] = field(default_factory=list)

    def carry_out(self, command: cmd.ToAgent) -> None:
        match command:
            case cmd.StartMember(member=member, seat=seat):
                self.done.append(("start", member, None if seat is None else seat.rank))
            case cmd.WatchClosely(hosts=hosts):
                self.done.append(("watch closely", hosts))
            case cmd.KillMember(member=member, hang=hang, reason=reason):
                self.done.append(("kill", member, hang, sentence(reason)))
            case cmd.DismissStranger(member=member, host=host, reason=reason):
                self.done.append(("dismiss", member, host, sentence(reason)))
            case cmd.StopJob():
                self.done.append(("stop", command))
            case _:
                for member in cmd.members_of(command):
                    self.send(member, command)

    def send(self, member: MemberId, command: cmd.ToMember) -> None:
        self.done.append(("send", member, command))

    def take(self) -> list[tuple[object, ...]]:
        done, self.done = self.done, []
        return done


@dataclass
class RememberingJournal:
    records: list[DecisionRecord | RecoveryRecord] = field(default_factory=list)

    def append(self, record: DecisionRecord | RecoveryRecord) -> None:
        self.records.append(record)

    @property
    def recoveries(self) -> list[RecoveryRecord]:
        return [record for record in self.records if isinstance(record, RecoveryRecord)]


class Play:
    """Two ranks (m-0, m-1) and one spare (m-2), trained and warm."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.clock, self.effects, self.journal = SetClock(), RememberedEffects(), RememberingJournal()
        self.accounts: list[Goodput] = []
        self.coordinator = Coordinator(
            JobMachine(policy or Policy(world_size=2, spares=1)),
            effects=self.effects,
            clock=self.clock,
            journals=(self.journal,),
            accounts=self.accounts.append,
        )

    def begin(self) -> None:
        self.coordinator.start()
        for name in ("m-0", "m-1", "m-2"):
            self.coordinator.handle(ev.MemberConnected(at=0.0, member=MemberId(name)))
        self.coordinator.handle(ev.MemberParked(at=0.0, member=MemberId("m-2")))
        for name in ("m-0", "m-1"):
            self.coordinator.handle(
                ev.MemberEstablished(at=1.0, member=MemberId(name), generation=Generation(1), twin_key="k")
            )
        self.effects.take()

    def lose(self, name: str, at: float, code: int = -9) -> None:
        cause = Cause(kind=CauseKind.SIGNAL, detail=f"signal {-code}", exit_code=code)
        self.coordinator.handle(ev.MemberLost(at=at, member=MemberId(name), cause=cause))

    def report(self, name: str, at: float, generation: int, holds: int | None) -> None:
        position = Position(holds=None if holds is None else StepNumber(holds))
        self.coordinator.handle(
            ev.PositionReported(
                at=at, member=MemberId(name), generation=Generation(generation), position=position, twin_key="k"
            )
        )

    def prepare(self, name: str, at: float, generation: int) -> None:
        self.coordinator.handle(
            ev.MemberPrepared(at=at, member=MemberId(name), generation=Generation(generation), twin_key="k")
        )

    def resume(self, name: str, at: float, generation: int, received: int = 0, **timings: float) -> None:
        transfer = TransferRecord(receiver=1, given={0: received}, seconds=0.1, checked=3) if received else None
        self.coordinator.measured(Measured(generation=generation, timings=timings, transfer=transfer))
        self.coordinator.handle(ev.MemberResumed(at=at, member=MemberId(name), generation=Generation(generation)))
