"""What detectors see in a whole run comes to the terminal and into the ledger, and training goes on."""

from pathlib import Path

import pytest
from tests.agent.launching import Launched

from understudy.protocol.reasons import Code
from understudy_testkit.faults.fake_exporter import FakeExporter

pytestmark = pytest.mark.processes


def test_a_slow_rank_is_named_and_the_job_goes_on(tmp_path: Path) -> None:
    until = tmp_path / "go"
    with Launched(tmp_path, f"--nproc-per-node 3 --spares 0 -- 1000 --slow-after 150 --until {until}") as job:
        job.wait_for_line("warn: straggler: rank 1 (m-1) computes 1.50 times as long")
        until.touch()
        assert job.wait() == 0, job.err
        (record,) = [record for record in job.decisions() if record["kind"] == "warn"]
        assert (record["rank"], record["member"]) == (1, "m-1") and record["step"] >= 150
        assert (record["code"], record["fields"]["wish"]) == (Code.EVIDENCE, "moved to a spare")


def test_a_bad_device_is_named_with_the_rank_that_uses_it(tmp_path: Path) -> None:
    until = tmp_path / "go"
    with FakeExporter({0: {}, 1: {"DCGM_FI_DEV_ROW_REMAP_FAILURE": 1.0}}) as exporter:
        flags = f"--nproc-per-node 2 --spares 0 --device-metrics {exporter.url}"
        with Launched(tmp_path, f"{flags} -- 5 --until {until}") as job:
            job.wait_for_line("warn: device: the device of rank 1 (m-1): DCGM_FI_DEV_ROW_REMAP_FAILURE is 1")
            until.touch()
            assert job.wait() == 0, job.err
            assert "[it should be replaced at once]" in job.err and "rank 0 (m-0)" not in job.err


def test_an_exporter_that_is_not_there_is_said_once_and_does_no_harm(tmp_path: Path) -> None:
    until = tmp_path / "go"
    flags = "--nproc-per-node 2 --spares 0 --device-metrics http://127.0.0.1:9/metrics"
    with Launched(tmp_path, f"{flags} -- 5 --until {until}") as job:
        job.wait_for_line("no device metrics from http://127.0.0.1:9/metrics")
        until.touch()
        assert job.wait() == 0, job.err
