"""What becomes of evidence: it is made known, and where its kind has a response it may become one request."""

from pathlib import Path

import pytest

from understudy.agent.evidence import EvidenceReview
from understudy.agent.members import Worker
from understudy.agent.responses import Asked, Move, Response
from understudy.detection.contract import Action, Detector, Evidence, Look
from understudy.detection.progress import Place, ProgressReader, ProgressWriter
from understudy.foundation.ids import MemberId, Rank
from understudy.ledger.records import DecisionRecord
from understudy.protocol.requests import MoveRanks


class Says:
    def __init__(self, kind: str, action: Action) -> None:
        self._kind, self._action = kind, action
        self.looks: list[Look] = []

    def look(self, look: Look) -> tuple[Evidence, ...]:
        self.looks.append(look)
        return tuple(
            Evidence(at=look.now, kind=self._kind, text="slow", action=self._action, rank=seen.rank, member=member)
            for member, seen in look.ranks.items()
            if seen.rank is not None
        )


class Raises:
    def look(self, look: Look) -> tuple[Evidence, ...]:
        raise ValueError(f"at {look.now}")


class Scene:
    def __init__(self, folder: Path, *detectors: Detector, **responses: Response) -> None:
        self.folder = folder
        self.reported: list[DecisionRecord] = []
        self.said: list[str] = []
        self.workers = {MemberId("m-0"): self.worker("m-0", 0), MemberId("m-1"): self.worker("m-1", None)}
        self.review = EvidenceReview(
            list(detectors),
            report=self.reported.append,
            say=self.said.append,
            responses=responses,
            numbers_of=lambda worker: {"x": 1.0} if worker.rank == 0 else {},
        )

    def worker(self, name: str, rank: int | None) -> Worker:
        path = str(self.folder / name)
        reader = ProgressReader(path)
        ProgressWriter(path).show(4, 17, Place.IN_STEP)
        return Worker(MemberId(name), reader, (), rank=rank)

    def look(self, now: float) -> tuple[Asked, ...]:
        pages = {member: worker.page.look() for member, worker in self.workers.items()}
        return self.review.look(now, self.workers, pages)


def test_evidence_is_recorded_with_its_place_and_its_wish(tmp_path: Path) -> None:
    says = Says("straggler", Action.MOVE)
    scene = Scene(tmp_path, says)
    assert scene.look(5.0) == (), "only noted"
    (record,) = scene.reported
    assert record.reason == "straggler: slow [it should be moved to a spare]"
    assert (record.kind, record.rank, record.member, record.step, record.generation) == ("warn", 0, "m-0", 17, 4)
    assert {member: seen.numbers for member, seen in says.looks[0].ranks.items()} == {"m-0": {"x": 1.0}, "m-1": {}}


def test_a_move_is_asked_for_once_per_member(tmp_path: Path) -> None:
    scene = Scene(tmp_path, Says("straggler", Action.MOVE), straggler=Move())
    assert scene.look(5.0) == (MoveRanks(at=5.0, ranks=(Rank(0),), reason="slow"),)
    assert scene.look(6.0) == ()
    scene.workers[MemberId("m-2")] = scene.worker("m-2", 0)
    del scene.workers[MemberId("m-0")]
    assert [request.at for request in scene.look(7.0)] == [7.0], "its successor is another member"


def test_other_kinds_and_other_wishes_move_nobody(tmp_path: Path) -> None:
    scene = Scene(tmp_path, Says("device", Action.MOVE), Says("straggler", Action.NOTE), straggler=Move())
    assert scene.look(5.0) == () and len(scene.reported) == 2


def test_a_detector_that_raises_is_not_asked_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, Raises(), Says("device", Action.NOTE))
    scene.look(5.0)
    scene.look(6.0)
    assert len(scene.reported) == 2
    assert scene.said == ["the detector Raises failed and is not asked again: ValueError('at 5.0')"]


class Garbles:
    """Returns what is no evidence."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def look(self, look: Look) -> tuple[Evidence, ...]:  # noqa: ARG002
        return self._answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        (None,),
        ("slow",),
        (Evidence(at=1.0, kind="x", text="x", rank="0"),),  # type: ignore[arg-type]
        (Evidence(at=1.0, kind="x", text=b"x"),),  # type: ignore[arg-type]
        (Evidence(at=1.0, kind="x", text="x", action="move"),),  # type: ignore[arg-type]
    ],
)
def test_a_detector_that_returns_what_is_no_evidence_is_not_asked_again(tmp_path: Path, answer: object) -> None:
    scene = Scene(tmp_path, Garbles(answer), Says("device", Action.NOTE))
    scene.look(5.0)
    scene.look(6.0)
    assert len(scene.reported) == 2
    assert len(scene.said) == 1 and scene.said[0].startswith("the detector Garbles failed and is not asked again")


class Answers:
    def __init__(self, answer: object) -> None:
        self._answer = answer

    def respond(self, evidence: Evidence) -> Asked | None:  # noqa: ARG002
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    "answer",
    [
        ValueError("no"),
        "move it",
        MoveRanks(at=5.0, ranks=(Rank(1),), reason="another rank"),
        MoveRanks(at=5.0, ranks=(Rank(0),), reason=None),  # type: ignore[arg-type]
    ],
)
def test_a_response_that_fails_is_not_asked_again(tmp_path: Path, answer: object) -> None:
    scene = Scene(tmp_path, Says("device", Action.MOVE), device=Answers(answer))
    assert scene.look(5.0) == scene.look(6.0) == ()
    assert len(scene.reported) == 2
    assert len(scene.said) == 1 and scene.said[0].startswith("the response Answers failed and is not asked again")
