"""Devices that are lost with the processes on them: seeded runs hold, and bugs are found."""

import pytest

from understudy_testkit.simulator.campaign import play_range
from understudy_testkit.simulator.device_bugs import BUGS_OF_LOST_DEVICES
from understudy_testkit.simulator.device_losses import play_with_lost_devices
from understudy_testkit.simulator.seeded_bugs import SeededBug, found


def test_many_seeds_hold() -> None:
    tally = play_range(range(60), play_with_lost_devices)
    assert not tally.violations, tally.violations[0][1]
    assert tally.fired["device: never"] and tally.fired["device: unknown"] and tally.fired["device: again"]
    assert tally.endings["succeeded"] > 35 and tally.endings["no usable device"]
    assert not tally.endings["no usable host"], "no host was lost"


def test_a_seed_repeats_a_run() -> None:
    assert play_with_lost_devices(7) == play_with_lost_devices(7)


@pytest.mark.parametrize("bug", BUGS_OF_LOST_DEVICES, ids=lambda bug: bug.what)
def test_a_rule_that_is_taken_out_is_missed(bug: SeededBug) -> None:
    violation = found(bug)
    assert violation is not None and str(violation).startswith("11: ")
