"""A command line for another release has the names of flags and modules that this release knows."""

from pathlib import Path

from understudy_testkit.faults.assertions import TRAIN_SCRIPT
from understudy_testkit.faults.releases import PACKAGE, spelled

COMMAND = ["understudy", "run", "--no-progress", "--drain-grace", "60", "--spares", "1", *TRAIN_SCRIPT, "--mode", "ddp"]


def test_this_version_gets_todays_names() -> None:
    assert spelled(COMMAND, PACKAGE.parent) == COMMAND


def test_a_release_from_before_gets_the_former_ones(tmp_path: Path) -> None:
    script = ("-m", "understudy_testkit.faults.trainee")
    former = ["understudy", "run", "--plain", "--notice", "60", "--spares", "1", *script, "--mode", "ddp"]
    assert spelled(COMMAND, tmp_path) == former
