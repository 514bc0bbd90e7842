"""A rank arrives when its device has come to the fence and no flag is up: not earlier, and otherwise never."""

from collections.abc import Callable
from typing import Any

import pytest

from understudy.devices.cpu import Cpu
from understudy.errors import StepAbandoned
from understudy.foundation.ids import Generation, StepNumber
from understudy.groups.device_fence import DeviceFence, comes_to_its_end
from understudy.groups.fence import Fences, GroupFence, SharedFence


class Story:
    """In which order things happen. `looks`: how often the event is asked before it is complete."""

    def __init__(self, looks: int) -> None:
        self.told: list[str] = []
        self.looks = looks

    def complete(self) -> bool:
        self.looks -= 1
        if self.looks <= 0:
            self.told.append("complete")
        return self.looks <= 0


class Late(Cpu):
    asynchronous = True

    def __init__(self, story: Story) -> None:
        self._story = story

    def record(self) -> Any:
        self._story.told.append("recorded")
        return self._story


def fence_of(story: Story) -> DeviceFence:
    return DeviceFence(GroupFence(lambda: story.told.append("arrived")), Late(story))


def test_the_flags_are_looked_at_between_the_event_and_the_arrival() -> None:
    story = Story(looks=3)

    def lost() -> bool:
        story.told.append("flags")
        return False

    fence_of(story).meet(StepNumber(4), lost)
    assert story.told == ["recorded", "flags", "flags", "complete", "flags", "arrived"]


@pytest.mark.parametrize("looks", [1, 10**9])
def test_a_rank_that_was_broken_off_never_arrives(looks: int) -> None:
    """Also when its device is done: what freed it may be the break."""
    story = Story(looks)
    with pytest.raises(StepAbandoned, match="step 4 is abandoned before its fence"):
        fence_of(story).meet(StepNumber(4), lambda: True)
    assert "arrived" not in story.told


def test_a_collective_comes_to_its_end_or_is_broken_off() -> None:
    assert comes_to_its_end(Late(Story(5)), lambda: False)
    assert not comes_to_its_end(Late(Story(5)), lambda: True)


@pytest.mark.parametrize("one_host", [True, False])
def test_every_fence_of_such_a_device_is_behind_it_and_no_other(tmp_path: Any, one_host: bool) -> None:
    behind: Callable[[Any], DeviceFence] = lambda fence: DeviceFence(fence, Late(Story(1)))  # noqa: E731
    late = Fences(str(tmp_path), 0, 1, one_host=one_host, behind=behind)
    usual = Fences(str(tmp_path), 0, 1, one_host=one_host)
    for generation in (Generation(1), Generation(2)):
        assert isinstance(late.of(generation), DeviceFence)
        assert isinstance(usual.of(generation), SharedFence if one_host else GroupFence)
