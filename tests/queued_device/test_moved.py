"""State goes from device to device, between processes: what arrives, where it lands, and what goes wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.queued_device.processes import processes

RANKS = 3


@pytest.mark.processes
def test_state_goes_from_device_to_device(tmp_path: Path) -> None:
    with processes(Path(__file__).with_name("moved.py"), RANKS, tmp_path) as ranks:
        for rank in range(RANKS):
            assert ranks.wait(rank, 200) == 0, ranks.told_by(rank)
    receiver, donor, other = (json.loads((tmp_path / f"seen-{rank}.json").read_text()) for rank in range(RANKS))
    for scene in ("joiner", "laggard", "a donor has no path"):
        assert receiver[scene]["digests"] == donor[scene]["digests"] == other[scene]["digests"]
        assert receiver[scene]["in place"]
        assert receiver[scene]["of host"] == ["of_host"], "each tensor is on the kind of memory that it is on elsewhere"
    for scene in ("joiner", "laggard"):
        assert _words(receiver, donor, other, scene=scene) < 0.2 * receiver[scene]["state"]
    assert _words(receiver, donor, other, scene="a donor has no path") > receiver["joiner"]["state"]
    assert receiver["damaged"]["trouble"] == "TransferError: state from rank 1 does not match its digest"
    assert "hold different bytes of parameters/model/0.weight" in receiver["donors differ"]["trouble"]
    assert donor["donors differ"]["trouble"].startswith("TransferError: rank 0 could not take the state")
    assert receiver["contact lost"]["trouble"] == "StepAbandoned: contact was lost in the middle of a transfer"
    for given in (donor, other):
        assert given["contact lost"]["trouble"] == "StepAbandoned: contact was lost in the middle of a transfer"


def _words(*ranks: dict[str, Any], scene: str) -> int:
    return sum(rank[scene]["words"] for rank in ranks)
