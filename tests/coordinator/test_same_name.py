"""The harness that runs jobs of one name one after the other finds one that does not really run."""

import asyncio
from pathlib import Path

import pytest

from understudy_testkit.faults import etcd_servers, same_name
from understudy_testkit.faults.same_name import Ending

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(etcd_servers.why_not() is not None, reason=str(etcd_servers.why_not())),
]


def test_a_job_runs_after_one_that_was_abandoned_and_one_that_was_given_up(tmp_path: Path) -> None:
    with etcd_servers.running(tmp_path) as etcd:
        endings = [Ending.ABANDONED, Ending.GIVEN_UP, Ending.FINISHED]
        runs = asyncio.run(same_name.run_again(tmp_path, etcd.address, "a token of sixteen letters", endings))
    assert len(set(runs)) == 3
    said = (tmp_path / "run-2" / "coordinator.txt").read_text()
    assert said.index("begins") < said.index("the job succeeded")
