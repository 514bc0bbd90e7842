"""What is asked of the protocol when a detector has found something: the contract of a response, and our own two.

A response is pure, as a detector is: it sees one piece of evidence and says what it asks for. The protocol grants or
refuses that. It is asked only about evidence that names a rank and its member, and asks once per member
(`evidence.py`). A response that raises is not asked again; training goes on.
"""

from typing import Protocol, runtime_checkable

from understudy.detection.contract import Action, Evidence
from understudy.protocol.requests import MoveRanks, ReplaceRank

Asked = MoveRanks | ReplaceRank
"""About the rank that the evidence names, and no other."""


@runtime_checkable
class Response(Protocol):
    def respond(self, evidence: Evidence, /) -> Asked | None:
        """None: nothing is asked for; the evidence is made known in any case."""
        ...


class Note:
    """The evidence is made known, and that is all."""

    contract_version = 1

    def respond(self, _evidence: Evidence) -> None:
        return None


class Move:
    """A rank that the detector would move is moved to a spare at the end of a step."""

    contract_version = 1

    def respond(self, evidence: Evidence) -> Asked | None:
        if evidence.action is not Action.MOVE or evidence.rank is None:
            return None
        return MoveRanks(at=evidence.at, ranks=(evidence.rank,), reason=evidence.text)
