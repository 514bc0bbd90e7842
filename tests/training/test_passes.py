"""What DDP keeps of its last pass: as it was where a step or a section began, here and in a replacement."""

from typing import Any

from understudy.training.body import Passes


class Ddp:
    """Stands for the engines: whether the next pass makes buffers equal first."""

    def __init__(self, makes_equal: bool = True) -> None:
        self.makes_equal = makes_equal

    def state_dict(self) -> dict[str, Any]:
        return {"makes_equal": [self.makes_equal]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        (self.makes_equal,) = state["makes_equal"]


def passes_of(ddp: Any) -> Passes:
    return Passes(ddp)


def test_a_pass_that_is_cut_short_is_begun_again_as_before() -> None:
    ddp = Ddp(makes_equal=False)  # the step follows an evaluation
    passes = passes_of(ddp)
    passes.remember()
    ddp.makes_equal = True  # the forward pass of the step
    passes.put_back()
    assert not ddp.makes_equal


def test_a_replacement_begins_where_its_donor_did_and_not_where_that_is_now() -> None:
    ddp, joiners = Ddp(makes_equal=True), Ddp(makes_equal=False)
    passes, received = passes_of(ddp), passes_of(joiners)
    passes.remember()  # a section begins
    ddp.makes_equal = False  # its first pass
    received.load_state_dict(passes.state_dict())
    assert joiners.makes_equal
    joiners.makes_equal = False
    received.put_back()
    assert joiners.makes_equal
