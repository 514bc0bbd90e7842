"""Sections between two steps: run again after a fault, told to ranks that join, put back what they changed."""

from types import SimpleNamespace
from typing import Any

import pytest

from understudy.errors import ProtectError
from understudy.groups.fence import AFTER_STEP
from understudy.training.recovery import tail
from understudy.training.recovery.tail import Result, TailResults
from understudy.training.sections import Sections


class StandIn:
    """A member between two steps that loses contact when a test says so."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.seeds: list[tuple[int, int]] = []
        self.met: list[tuple[int, int]] = []
        self.put_back = self.recoveries = 0
        self.reported: list[Exception] = []
        self.on_recovery: Any = lambda: None
        self.at_fence: Any = lambda: None
        status: Any = SimpleNamespace(
            between_steps=True, in_section=False, abandoned=False, holds=5, generation=1, go_on_between_steps=int
        )
        self.status = status
        contact: Any = SimpleNamespace(
            lost=lambda: self.status.abandoned,
            await_word=lambda _why: None,
            come_to_rest=int,
            look_at=lambda _error: None,
        )
        fence = SimpleNamespace(meet=self._meet)
        fences: Any = SimpleNamespace(of=lambda _generation: fence)
        self.small = b"before"
        self.kept: list[int] = []  # what only this rank has, for the step after these
        body: Any = SimpleNamespace(
            arrive=self.kept.append,
            remember=int,
            forget=int,
            put_back=self._put_back,
            small=SimpleNamespace(read=lambda: self.small, put=lambda content: setattr(self, "small", content)),
        )
        self.body = body
        rank_local: Any = SimpleNamespace(inherit_before=int)
        recovery: Any = SimpleNamespace(recover=self._recover)
        errors: Any = SimpleNamespace(report=lambda error, _step: self.reported.append(error))
        self.tail = TailResults(self.said.append)
        self.sections = Sections(
            status=status,
            contact=contact,
            fences=fences,
            body=body,
            rank_local=rank_local,
            tail=self.tail,
            recovery=recovery,
            errors=errors,
            note=self.said.append,
        )
        self.sections.seed = lambda step, place: self.seeds.append((step, place))

    def _meet(self, step: int, _lost: Any, place: int) -> None:
        self.at_fence()
        self.met.append((step, place))

    def _put_back(self) -> None:
        self.put_back += 1

    def _recover(self) -> None:
        assert self.tail.waiting
        self.recoveries += 1
        self.status.abandoned = False
        self.on_recovery()


@pytest.fixture
def member() -> StandIn:
    return StandIn()


def test_sections_are_counted_seeded_and_fenced_each_at_its_place(member: StandIn) -> None:
    assert member.sections.run("evaluate", lambda: 0.5) == 0.5
    assert member.sections.run("save", lambda: None) is None
    assert member.seeds == [(4, 0), (4, 1)] and member.met == [(4, AFTER_STEP), (4, AFTER_STEP + 1)]
    assert member.tail.done == 2 and member.said == []
    assert member.kept == [4, 4]  # a section may change it: an evaluation through DDP makes buffers equal


def test_in_a_step_or_in_another_section_it_is_the_function_alone(member: StandIn) -> None:
    member.status.between_steps = False
    assert member.sections.run("evaluate", lambda: 1) == 1
    member.status.between_steps = True
    assert member.sections.run("outer", lambda: member.sections.run("inner", lambda: 2)) == 2
    assert member.tail.done == 1 and not member.status.in_section


def test_it_runs_again_as_a_whole_after_a_fault(member: StandIn) -> None:
    tries: list[int] = []

    def evaluate() -> int:
        tries.append(1)
        if len(tries) == 1:
            member.status.abandoned = True
            raise RuntimeError("a connection is broken")
        return 7

    assert member.sections.run("evaluate", evaluate) == 7
    assert len(tries) == 2 and member.put_back == member.recoveries == 1 and member.tail.done == 1


def test_an_error_of_the_script_is_its_own(member: StandIn) -> None:
    def evaluate() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        member.sections.run("evaluate", evaluate)
    assert [str(error) for error in member.reported] == ["wrong"] and not member.status.in_section


def test_a_rank_that_joins_is_told_what_is_over_and_runs_the_rest(member: StandIn) -> None:
    donor = StandIn()
    donor.sections.run("evaluate", lambda: {"loss": 0.25, "correct": [1, 2]})
    member.tail._foretold.extend(donor.tail._results)
    never = pytest.fail
    assert member.sections.run("evaluate", lambda: never("it is over")) == {"loss": 0.25, "correct": [1, 2]}
    assert member.sections.run("save", lambda: "saved") == "saved"
    assert member.met == [(4, AFTER_STEP + 1)] and member.tail.done == 2


def test_a_rank_that_had_come_to_the_end_keeps_its_own_result(member: StandIn) -> None:
    """Others have passed the fence, and it has not seen that."""

    def lose_contact() -> None:
        member.status.abandoned = True
        raise RuntimeError("the barrier is broken")

    donor = StandIn()
    donor.sections.run("evaluate", lambda: "the donor's")
    member.at_fence = lose_contact
    member.on_recovery = lambda: member.tail._foretold.extend(donor.tail._results)
    assert member.sections.run("evaluate", lambda: "its own") == "its own"
    assert member.recoveries == 1 and member.tail.done == 1


def test_where_the_world_has_gone_back_the_last_result_is_given(member: StandIn) -> None:
    assert member.sections.run("evaluate", lambda: 0.5) == 0.5

    def go_back() -> None:
        member.tail.begin()
        member.tail._void = True

    member.on_recovery = go_back
    member.status.abandoned = True
    assert member.sections.run("evaluate", lambda: 0.1) == 0.5
    assert "goes on with that of the last time (0.5)" in member.said[-1]
    assert member.sections.run("save", lambda: "saved") is None, "until the script is back at its loop"


def test_what_cannot_be_told_is_said(member: StandIn) -> None:
    donor = StandIn()
    donor.sections.run("evaluate", object)
    member.tail._foretold.extend([*donor.tail._results, Result([b""])])
    assert member.sections.run("evaluate", lambda: 1) is None and "not known to this rank" in member.said[-1]
    assert member.sections.run("save", lambda: 1) is None and "where other ranks ran a collective" in member.said[-2]


def test_a_rank_that_is_told_a_result_has_the_small_state_behind_that_section(member: StandIn) -> None:
    """It has its state from a rank that is further: the best loss is known there, the scheduler has stepped."""
    donor = StandIn()

    def evaluate() -> float:
        donor.small = b"behind the evaluation"
        return 0.25

    donor.sections.run("evaluate", evaluate)
    donor.small = b"the script has gone on"
    member.small = donor.small
    member.tail._foretold.extend(donor.tail._results)
    assert member.sections.run("evaluate", lambda: 1.0) == 0.25 and member.small == b"behind the evaluation"


def test_what_cannot_be_told_of_the_small_state_is_left_alone(member: StandIn) -> None:
    donor = StandIn()

    def refuse() -> bytes:
        raise ProtectError("state.meter is an object, which cannot be sent without pickle")

    donor.body.small_state = refuse
    donor.sections.run("evaluate", lambda: 0.25)
    member.tail._foretold.extend(donor.tail._results)
    assert member.sections.run("evaluate", lambda: 1.0) == 0.25 and member.small == b"before"


def test_in_a_loop_of_windows_the_loop_keeps_it(member: StandIn) -> None:
    nothing: Any = lambda *_: b""  # noqa: E731
    loop: Any = SimpleNamespace(take=nothing, section_ends=nothing)
    member.sections.loop = loop
    member.sections.run("evaluate", lambda: 0.5)
    assert member.tail._results[0].small is None


def test_a_small_state_that_is_too_large_takes_no_result_with_it(
    member: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "_MOST_KEPT", 100)
    member.small = bytes(200)
    member.sections.run("evaluate", lambda: 0.5)
    assert member.tail.done == 1 and member.tail._results[0].small is None and member.tail._results[0].value
