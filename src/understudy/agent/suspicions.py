"""Asks the detectors at every look, makes known what they say, and passes on what may be acted upon.

Evidence goes to the terminal and into the ledger. Only a straggler may become a request (`--on-straggler move`), and
only once per member: the protocol decides what follows from it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from understudy.agent.members import Worker
from understudy.detection.contract import Action, Detector, Evidence, Look, RankLook
from understudy.detection.progress import Progress
from understudy.foundation.ids import MemberId, Rank
from understudy.ledger.records import DecisionRecord
from understudy.protocol.commands import DecisionKind
from understudy.protocol.reasons import Code, because, fields_of
from understudy.protocol.requests import MoveRanks
from understudy.protocol.sentences import sentence

Report = Callable[[DecisionRecord], None]
NumbersOf = Callable[[Worker], Mapping[str, float]]


@dataclass(slots=True)
class Suspicions:
    """`numbers_of`: what else is known of a worker. `moves`: the kinds of evidence that may move a rank."""

    detectors: Sequence[Detector]
    report: Report
    say: Callable[[str], None]
    moves: frozenset[str] = frozenset()
    numbers_of: NumbersOf = lambda _worker: {}
    _moved: set[MemberId] = field(default_factory=set)

    def look(
        self, now: float, workers: Mapping[MemberId, Worker], pages: Mapping[MemberId, Progress]
    ) -> tuple[MoveRanks, ...]:
        """What is to be asked of whoever decides."""
        self._moved &= workers.keys()
        seen = {member: self._seen(workers[member], page) for member, page in pages.items()}
        evidence = [found for detector in self.detectors for found in self._ask(detector, Look(now=now, ranks=seen))]
        requests = []
        for found in evidence:
            self._make_known(found, pages)
            if found.action is Action.MOVE and found.kind in self.moves and found.rank is not None:
                requests += self._move(found, found.rank)
        return tuple(requests)

    def _seen(self, worker: Worker, page: Progress) -> RankLook:
        rank = None if worker.rank is None else Rank(worker.rank)
        return RankLook(member=worker.member, rank=rank, page=page, numbers=self.numbers_of(worker))

    def _ask(self, detector: Detector, look: Look) -> tuple[Evidence, ...]:
        try:
            return detector.look(look)
        except Exception as error:  # somebody else's code, and training is not its business
            self.detectors = [other for other in self.detectors if other is not detector]
            self.say(f"the detector {type(detector).__name__} failed and is not asked again: {error!r}")
            return ()

    def _make_known(self, evidence: Evidence, pages: Mapping[MemberId, Progress]) -> None:
        page = None if evidence.member is None else pages.get(evidence.member)
        wish = None if evidence.action is Action.NOTE else _WISHES[evidence.action]
        reason = because(Code.EVIDENCE, detector=evidence.kind, text=evidence.text, wish=wish)
        self.report(
            DecisionRecord(
                at=evidence.at,
                generation=0 if page is None else page.generation,
                kind=DecisionKind.WARN.value,
                reason=sentence(reason),
                code=reason.code,
                fields=fields_of(reason),
                rank=evidence.rank,
                member=evidence.member,
                step=None if page is None else page.step,
            )
        )

    def _move(self, evidence: Evidence, rank: Rank) -> list[MoveRanks]:
        if evidence.member is None or evidence.member in self._moved:
            return []
        self._moved.add(evidence.member)
        return [MoveRanks(at=evidence.at, ranks=(rank,), reason=evidence.text)]


_WISHES = {Action.MOVE: "moved to a spare", Action.REPLACE: "replaced at once"}
