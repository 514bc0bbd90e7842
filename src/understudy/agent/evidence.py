"""Asks the detectors at every look, makes known what they say, and asks for what the response to it wants.

Evidence goes to the terminal and into the ledger. It becomes a request where its kind has a response
(`--on-straggler move`, `--on-evidence`), and only once per member: the protocol decides what follows from it.
Detectors and responses may be code of other packages: one that fails, or answers what is no answer, is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from understudy.agent.members import Worker
from understudy.agent.responses import Asked, Response
from understudy.detection.contract import Action, Detector, Evidence, Look, RankLook
from understudy.detection.progress import Progress
from understudy.foundation.ids import MemberId, Rank
from understudy.ledger.records import DecisionRecord
from understudy.protocol.commands import DecisionKind
from understudy.protocol.reasons import Code, because, fields_of
from understudy.protocol.requests import MoveRanks, ReplaceRank
from understudy.protocol.sentences import sentence

Report = Callable[[DecisionRecord], None]
NumbersOf = Callable[[Worker], Mapping[str, float]]


@dataclass(slots=True)
class EvidenceReview:
    """`responses`: by the kind of evidence. `numbers_of`: what else is known of a worker."""

    detectors: Sequence[Detector]
    report: Report
    say: Callable[[str], None]
    responses: Mapping[str, Response] = field(default_factory=dict)
    numbers_of: NumbersOf = lambda _worker: {}
    _answered: set[MemberId] = field(default_factory=set)

    def look(
        self, now: float, workers: Mapping[MemberId, Worker], pages: Mapping[MemberId, Progress]
    ) -> tuple[Asked, ...]:
        """What is to be asked of the protocol."""
        self._answered &= workers.keys()
        seen = {member: self._seen(workers[member], page) for member, page in pages.items()}
        evidence = [found for detector in self.detectors for found in self._ask(detector, Look(now=now, ranks=seen))]
        requests = []
        for found in evidence:
            self._make_known(found, pages)
            requests += self._respond(found)
        return tuple(requests)

    def _seen(self, worker: Worker, page: Progress) -> RankLook:
        rank = None if worker.rank is None else Rank(worker.rank)
        return RankLook(member=worker.member, rank=rank, page=page, numbers=self.numbers_of(worker))

    def _ask(self, detector: Detector, look: Look) -> tuple[Evidence, ...]:
        try:
            answer = tuple(detector.look(look))
            for found in answer:
                _require_evidence(found)
            return answer
        except Exception as error:  # third-party code, and training is not its business
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

    def _respond(self, evidence: Evidence) -> list[Asked]:
        response = self.responses.get(evidence.kind)
        if response is None or evidence.rank is None or evidence.member is None or evidence.member in self._answered:
            return []
        try:
            asked = response.respond(evidence)
            if asked is None:
                return []
            _require_request(asked, evidence.rank)
        except Exception as error:  # as with detectors
            self.responses = {kind: other for kind, other in self.responses.items() if other is not response}
            self.say(f"the response {type(response).__name__} failed and is not asked again: {error!r}")
            return []
        self._answered.add(evidence.member)
        return [asked]


def _require_evidence(found: object) -> None:
    """What is no evidence would be an error in the ledger, or of the agent itself."""
    if not (
        isinstance(found, Evidence)
        and isinstance(found.at, float | int)
        and isinstance(found.kind, str)
        and isinstance(found.text, str)
        and isinstance(found.action, Action)
        and isinstance(found.rank, int | None)
        and isinstance(found.member, str | None)
    ):
        raise TypeError(f"{found!r} is no evidence")


def _require_request(asked: object, rank: Rank) -> None:
    about = asked.ranks if isinstance(asked, MoveRanks) else (asked.rank,) if isinstance(asked, ReplaceRank) else ()
    if about != (rank,) or not isinstance(asked, MoveRanks | ReplaceRank) or not isinstance(asked.reason, str):
        raise ValueError(f"{asked!r} is no request about rank {rank}")


_WISHES = {Action.MOVE: "moved to a spare", Action.REPLACE: "replaced at once"}
