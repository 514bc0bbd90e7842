"""A process is killed in the middle of a collective: what the other one sees, before and after its abort."""

import json
import signal
from pathlib import Path

import pytest
from tests.queued_device.processes import processes


@pytest.mark.processes
def test_a_killed_peer_and_what_an_abort_does_to_the_queue(tmp_path: Path) -> None:
    with processes(Path(__file__).with_name("struck.py"), 2, tmp_path) as ranks:
        assert ranks.wait(0, 200) == 0, ranks.told_by(0)
        assert ranks.wait(1, 10) == -signal.SIGKILL, ranks.told_by(1)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen == {
        "objects": [{"of": 0}],
        "gathered": [["rank", 0], ["rank", 1]],
        "received": [1.0, 1.0, 1.0],
        "averaged": [0.5, 0.5],
        "parts": [0.0, 0.0, 1.0, 1.0],
        "stands": True,
        "error before": "ErrorType.SUCCESS",
        "freed": True,
        "error after": "ErrorType.COMM_ERROR",
        "probe": True,
        "fenced is whole": True,
        "unfenced is damaged": True,
    }
