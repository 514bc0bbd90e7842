"""Every alert of deploy/prometheus on days of real runs, as a real Prometheus recorded them.

`claims/operators-truth --only days --record tests/api/recorded_days` makes the recordings; each says which alerts must
fire.
"""

from pathlib import Path

import msgspec
import pytest
from tests.api.recorded_series import RULES

from understudy_testkit.faults.recorded_days import Day, replay

pytestmark = pytest.mark.timeout(180)
DAYS = sorted((Path(__file__).parent / "recorded_days").glob("*.json"))


def test_the_days_are_there() -> None:
    assert {file.stem for file in DAYS} == {"healthy", "recovery", "degraded", "finished", "leaderless", "two-jobs"}


@pytest.mark.parametrize("file", DAYS, ids=lambda file: file.stem)
def test_the_right_alerts_fire_and_no_others(file: Path, tmp_path: Path) -> None:
    replay(tmp_path, RULES, msgspec.json.decode(file.read_bytes(), type=Day))
