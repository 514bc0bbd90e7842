"""A step that counts on a rank whose process has not computed it: the script can tell."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from understudy.errors import StepAbandoned
from understudy.training.running_ahead import NeverAhead
from understudy.training.steps import ProtectedStep, Step, TailStep


def nothing(*_: Any) -> None:
    return None


def member(*, in_tail: bool, holds: int) -> Any:
    """One whose recovery leaves it with `holds` steps, between two steps (`in_tail`) or back at its loop."""
    status = SimpleNamespace(
        in_steps=False,
        in_tail=False,
        holds=7,
        abandoned=False,
        generation=1,
        between_steps=False,
        go_on_between_steps=nothing,
        show=nothing,
        established=False,
    )

    def recover(*_: Any) -> None:
        status.in_tail, status.holds = in_tail, holds

    return SimpleNamespace(
        status=status,
        ahead=NeverAhead(),
        recovery=SimpleNamespace(carry_out=recover, recover=recover),
        contact=SimpleNamespace(lost=lambda: True, await_word=nothing, come_to_rest=nothing, look_at=nothing),
        tail=SimpleNamespace(is_ahead=lambda _truly=True: nullcontext(), begin_step=nothing),
        replicas=SimpleNamespace(watch=nothing),
        peer_memory=SimpleNamespace(begin_due=nothing),
        body=SimpleNamespace(
            protected=SimpleNamespace(forget_gradients=nothing),
            late_fence=SimpleNamespace(undo=None),
            watch=nothing,
            begin=nothing,
            begin_rank_local=nothing,
            end=nothing,
            put_back_buffers=nothing,
        ),
    )


def test_a_replacement_that_is_needed_between_steps_inherits_the_step_before() -> None:
    plan: Any = SimpleNamespace(step=8)
    step = TailStep(member(in_tail=True, holds=8), plan, nothing, nothing)
    assert not step.inherited
    with step:
        pass
    assert (step.number, step.committed, step.inherited, step.rehearsing) == (7, True, True, False)


def test_a_replacement_that_must_run_the_step_itself_does_not() -> None:
    plan: Any = SimpleNamespace(step=8)
    step = TailStep(member(in_tail=False, holds=7), plan, nothing, nothing)
    with step:
        pass
    assert not step.committed and not step.inherited


@pytest.mark.parametrize(("in_tail", "inherited"), [(True, True), (False, False)])
def test_a_rank_whose_body_was_cut_short_inherits_the_step_if_others_wait_behind_it(
    in_tail: bool, inherited: bool
) -> None:
    step = ProtectedStep(member(in_tail=in_tail, holds=8), 7, 0, nothing, nothing)
    with step:
        raise StepAbandoned("a peer was lost in the backward pass")
    assert step.committed is inherited and step.inherited is inherited


def test_what_a_process_has_computed_itself_is_not_inherited() -> None:
    step = Step(3, 0, nothing, nothing)
    with step:
        pass
    assert step.committed and not step.inherited
