"""A host past the fence of a step that its device has not decided: what it writes down, and how it goes back."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import understudy
from understudy.errors import StepAbandoned, UsageError
from understudy.foundation.ids import StepNumber
from understudy.training.joining import require_deciding
from understudy.training.running_ahead import Armed, NeverAhead, RunAhead
from understudy.training.step_ledger import StepLedger
from understudy_testkit.queued_device.plugins import EmulatedDevice


class StandInFlag:
    def __init__(self, step: int, good: bool) -> None:
        self.step, self.good, self.known = StepNumber(step), good, True
        self.bad = torch.tensor(0.0 if good else 1.0)

    def is_known(self) -> bool:
        return self.known

    def is_good(self) -> bool:
        return self.good


class StandInFence:
    def __init__(self) -> None:
        self.bad_from = 100
        self.begun: list[int] = []

    def begin(self, generation: int) -> None:
        self.begun.append(generation)

    def queue(self, step: StepNumber) -> StandInFlag:
        return StandInFlag(step, step < self.bad_from)


class Stage:
    """All ranks agree with this one."""

    def __init__(self, **world: Any) -> None:
        self.lines: list[Any] = []
        self.notes: list[str] = []
        self.back_to: list[int] = []
        self.lost = False
        self.place = 0
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0, momentum=0.9, fused=True)
        self.ledger = StepLedger(SimpleNamespace(append=self.lines.append), "m-0", 0, 2, 0)
        self.status = SimpleNamespace(generation=1, holds=StepNumber(0))
        self.replicas = SimpleNamespace(in_windows=False, all_are_twins=True)
        self.world = SimpleNamespace(
            present=[0, 1], size=2, rank=0, words=SimpleNamespace(largest=lambda number: number)
        )
        self.protected: Any = SimpleNamespace(
            optimizers={"optimizer": optimizer}, save=None, averages=dict, forget_gradients=lambda: None
        )
        self.body: Any = SimpleNamespace(
            protected=self.protected,
            late_fence=SimpleNamespace(undo=None),
            small=SimpleNamespace(objection=lambda: None),
            place=lambda: self.place,
            back_to=self.back_to.append,
        )
        body: Any = self.body
        for name, value in world.items():
            owner, _, field = name.partition("_of_")
            setattr(getattr(self, field), owner, value)
        self.fence = StandInFence()
        fence: Any = self.fence
        self.ahead = RunAhead(
            fence,
            warned=True,
            status=self.status,  # type: ignore[arg-type]
            world=self.world,  # type: ignore[arg-type]
            contact=SimpleNamespace(lost=lambda: self.lost),  # type: ignore[arg-type]
            body=body,
            replicas=self.replicas,  # type: ignore[arg-type]
            ledger=self.ledger,
            note=self.notes.append,
        )
        self.ahead.agree()

    def step(self, number: int) -> None:
        """To its end, as `steps` goes through it."""
        self.place = number
        self.ahead.begin_step(number)
        self.ahead.pass_fence(number)
        self.ledger.committed(self.protected, self.status.generation, number, 0)
        self.status.holds = StepNumber(number + 1)

    def recorded(self) -> list[int]:
        return [record.step for record in self.lines]


def test_a_step_is_written_down_when_its_flag_is_known() -> None:
    stage = Stage()
    assert stage.ahead.is_on and stage.fence.begun == [1]
    stage.step(4)
    assert stage.ahead.unread and stage.recorded() == []
    stage.step(5)
    assert stage.recorded() == [4]
    stage.ahead.know()
    assert stage.recorded() == [4, 5] and not stage.ahead.unread


def test_a_bad_flag_stops_the_host_at_the_next_fence_and_puts_back_what_it_has_done() -> None:
    stage = Stage()
    stage.step(4)
    stage.fence.bad_from = 5
    stage.step(5)
    with pytest.raises(StepAbandoned, match="step 5"):
        stage.step(6)
    assert stage.ahead.at_rest() == 5
    assert stage.status.holds == 5 and stage.back_to == [5] and stage.recorded() == [4]
    assert stage.notes == ["rank 0 was past the fence of step 5, which its device has not applied"]
    stage.fence.bad_from = 100
    stage.step(5)
    stage.ahead.know()
    assert stage.recorded() == [4, 5]


def test_what_was_applied_counts_though_contact_is_lost() -> None:
    stage = Stage()
    stage.step(4)
    assert stage.ahead.at_rest() is None
    assert stage.status.holds == 5 and stage.back_to == [] and stage.recorded() == [4]


def test_an_attempt_that_has_not_ended_is_put_back_too() -> None:
    """The script may have stepped a scheduler behind its optimizer."""
    stage = Stage()
    stage.fence.bad_from, stage.place = 0, 7
    stage.status.holds = StepNumber(7)
    stage.ahead.begin_step(7)
    stage.ahead.pass_fence(7)
    assert stage.ahead.at_rest() == 7
    assert stage.status.holds == 7 and stage.back_to == [7] and not stage.notes


def test_a_host_that_waits_for_a_flag_hears_that_contact_is_lost() -> None:
    stage = Stage()
    stage.step(4)
    stage.ahead._flags[0].known, stage.lost = False, True  # type: ignore[attr-defined]
    with pytest.raises(StepAbandoned, match="before its flag is known"):
        stage.ahead.know()
    assert stage.ahead.unread


@pytest.mark.parametrize(
    ("world", "says"),
    [
        ({"present_of_world": [0]}, "ranks are absent"),
        ({"all_are_twins_of_replicas": False}, "not every rank is a twin"),
        ({"in_windows_of_replicas": True}, "the loop is not ours"),
        ({"late_fence_of_body": SimpleNamespace(undo=object())}, "after an optimizer has stepped"),
        ({"save_of_protected": print}, "own functions save"),
        ({"averages_of_protected": lambda: {"average": None}}, "no optimizer steps average"),
        ({"optimizers_of_protected": {}}, "no optimizer is given"),
        ({"small_of_body": SimpleNamespace(objection=lambda: "it is large")}, "it is large"),
    ],
)
def test_what_speaks_against_it_is_said_once(world: dict[str, Any], says: str) -> None:
    stage = Stage(**world)
    stage.ahead.agree()
    assert not stage.ahead.is_on
    assert len(stage.notes) == 1 and says in stage.notes[0]


def test_a_flag_of_ours_does_not_stay_with_an_optimizer_and_that_of_a_scaler_does() -> None:
    optimizer: Any = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0, fused=True)
    bad: Any = StandInFlag(0, good=False)
    armed = Armed(optimizer, bad)
    assert optimizer.found_inf == 1.0
    armed.release()
    assert not hasattr(optimizer, "found_inf")
    optimizer.found_inf = of_scaler = torch.ones(1)
    armed = Armed(optimizer, bad)
    assert optimizer.found_inf == 1.0
    armed.release()
    assert optimizer.found_inf is of_scaler
    del optimizer.found_inf
    armed.release()
    assert not hasattr(optimizer, "found_inf"), "the scaler has taken it away"


def test_hosts_are_never_ahead_by_default() -> None:
    never = NeverAhead()
    assert not never.is_on and not never.unread and never.at_rest() is None


def test_join_refuses_what_is_never_behind_and_what_cannot_decide() -> None:
    with pytest.raises(UsageError, match='it can be "host" or "device"'):
        understudy.join(fence="elsewhere")  # type: ignore[arg-type]
    require_deciding(EmulatedDevice())
    with pytest.raises(UsageError, match="never behind its host"):
        require_deciding(SimpleNamespace(name="cpu", asynchronous=False))
    with pytest.raises(UsageError, match="cannot decide"):
        require_deciding(SimpleNamespace(name="late", asynchronous=True))
