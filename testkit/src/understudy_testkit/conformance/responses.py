"""Checks that a response to evidence keeps the contract (`understudy.agent.responses`):

    from understudy_testkit.conformance import responses

    def test_my_response_conforms() -> None:
        responses.check(MyResponse)

It is shown evidence of every kind and wish. Whether it asks for the right thing must be tested elsewhere.
"""

import itertools
from collections.abc import Callable, Iterator

from understudy.agent.responses import Response
from understudy.detection.contract import Action, Evidence
from understudy.foundation.ids import MemberId, Rank
from understudy.protocol.requests import MoveRanks, ReplaceRank
from understudy_testkit.conformance.rule import NotConforming, Rule, check_all, require

_KINDS = ("straggler", "device", "something new", "")
_TEXTS = ("rank 1 computes 1.8 times as long", "", "control \x1b[2J characters", "long " * 2000)


def check(make: Callable[[], Response]) -> None:
    """NotConforming at the first rule that is broken. `make` must return a new response each time."""
    check_all(RULES, make)


def _evidence() -> Iterator[Evidence]:
    for kind, text, action, rank in itertools.product(_KINDS, _TEXTS, Action, (0, 1, 4095)):
        yield Evidence(at=7.5, kind=kind, text=text, action=action, rank=Rank(rank), member=MemberId(f"m-{rank}"))


def _answers(make: Callable[[], Response]) -> list[tuple[Evidence, object]]:
    response, answers = make(), list[tuple[Evidence, object]]()
    for evidence in _evidence():
        try:
            answers.append((evidence, response.respond(evidence)))
        except Exception as error:
            raise NotConforming(f"shown {evidence!r} it raised {type(error).__name__}: {error}") from error
    return answers


def _asks_about_that_rank(make: Callable[[], Response]) -> None:
    for evidence, asked in _answers(make):
        shown = f"shown {evidence!r} it answered {asked!r}"
        match asked:
            case None:
                continue
            case MoveRanks(ranks=ranks):
                require(ranks == (evidence.rank,), f"{shown}, about another rank")
            case ReplaceRank(rank=rank, member=member):
                require(rank == evidence.rank, f"{shown}, about another rank")
                require(member == evidence.member, f"{shown}: by then the rank may be another member's; name it")
            case _:
                raise NotConforming(f"{shown}, which is no request that a response can make")
        require(isinstance(asked.reason, str) and asked.at == evidence.at, f"{shown}, without the time or a reason")


def _is_deterministic(make: Callable[[], Response]) -> None:
    require(_answers(make) == _answers(make), "shown the same evidence twice, it answered differently")


def _leaves_notes_alone(make: Callable[[], Response]) -> None:
    for evidence, asked in _answers(make):
        if evidence.action is Action.NOTE:
            require(asked is None, f"shown {evidence!r}, which only a person should know, it asked for {asked!r}")


RULES: tuple[Rule[Response], ...] = (
    Rule("survives everything, and asks for nothing but the rank that the evidence names", _asks_about_that_rank),
    Rule("answers the same evidence in the same way", _is_deterministic),
    Rule("asks for nothing where the detector only notes something", _leaves_notes_alone),
)
