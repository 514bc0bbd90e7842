"""What a worker said, as an event of the protocol or as a record of the ledger."""

from understudy.foundation.ids import Generation, MemberId, Rank, StepNumber
from understudy.ledger.records import TransferRecord
from understudy.protocol import events as ev
from understudy.protocol.positions import Position
from understudy.wire import messages as msg


def to_record(transfer: msg.Transfer | None) -> TransferRecord | None:
    if transfer is None:
        return None
    return TransferRecord(
        receiver=transfer.receiver,
        given=transfer.given,
        seconds=transfer.seconds,
        checked=transfer.checked,
        digest=transfer.digest,
        from_memory=transfer.from_memory,
        distrusted=tuple(transfer.distrusted),
    )


def to_event(at: float, member: MemberId, message: msg.FromWorker) -> ev.Event | None:
    """None for what is no news to the protocol: notes, stacks, activity, failures (they count once the process has
    ended)."""
    match message:
        case msg.Hello():
            return ev.MemberConnected(at=at, member=member)
        case msg.Parked():
            return ev.MemberParked(at=at, member=member)
        case msg.Established():
            return ev.MemberEstablished(
                at=at,
                member=member,
                generation=Generation(message.generation),
                twin_key=message.twin_key,
                holdings=message.holdings,
                replica=tuple(map(Rank, message.replica)),
                began_at=StepNumber(message.began_at),
            )
        case msg.AtStep(generation=generation, step=step):
            return ev.StepTold(at=at, member=member, generation=Generation(generation), step=StepNumber(step))
        case msg.StateDigest(generation=generation, step=step, digest=digest, copied=copied):
            return ev.DigestTold(
                at=at,
                member=member,
                generation=Generation(generation),
                step=StepNumber(step),
                digest=digest,
                copied=copied,
            )
        case msg.BadState():
            return ev.BadStateTold(
                at=at,
                member=member,
                generation=Generation(message.generation),
                step=StepNumber(message.step),
                why=message.why,
                certain=message.certain,
            )
        case msg.PositionReport():
            return ev.PositionReported(
                at=at,
                member=member,
                generation=Generation(message.generation),
                position=Position(
                    holds=None if message.holds is None else StepNumber(message.holds),
                    arrived=message.arrived,
                    established=message.established,
                    kept=None if message.kept is None else StepNumber(message.kept),
                    saved=tuple(map(StepNumber, message.saved)),
                    keeps=_keeps(message),
                    tail=message.tail,
                    in_tail=message.in_tail,
                ),
                twin_key=message.twin_key,
                holdings=message.holdings,
                provisional=message.provisional,
            )
        case msg.Prepared():
            return ev.MemberPrepared(
                at=at,
                member=member,
                generation=Generation(message.generation),
                twin_key=message.twin_key,
                holdings=message.holdings,
                saved=tuple(map(StepNumber, message.saved)),
                keeps=_keeps(message),
            )
        case msg.Resumed(generation=generation, finite=finite):
            return ev.MemberResumed(at=at, member=member, generation=Generation(generation), finite=finite)
        case msg.RecoveryTrouble(generation=generation, why=why, unfit=unfit):
            return ev.RecoveryFailed(at=at, member=member, generation=Generation(generation), why=why, unfit=unfit)
        case msg.Finished(generation=generation):
            return ev.MemberFinished(at=at, member=member, generation=Generation(generation))
        case msg.ContactLost(generation=generation, why=why):
            return ev.ContactLost(at=at, member=member, generation=Generation(generation), why=why)
        case msg.CheckpointList(generation=generation, steps=steps):
            found = tuple(map(StepNumber, steps))
            return ev.CheckpointsTold(at=at, member=member, generation=Generation(generation), steps=found)
        case msg.ScriptFailed() | msg.Note() | msg.Stacks() | msg.ActivityReport():
            return None


def _keeps(message: msg.PositionReport | msg.Prepared) -> tuple[tuple[Rank, StepNumber], ...]:
    return tuple((Rank(rank), StepNumber(step)) for rank, step in message.keeps)
