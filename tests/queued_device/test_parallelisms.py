"""Training on the queued device, in every parallelism, ends bit for bit as on plain CPUs."""

import json
from pathlib import Path

import pytest
from tests.queued_device.processes import processes

pytestmark = pytest.mark.processes
_ALIKE = Path(__file__).with_name("alike.py")
_PATIENCE = 200.0


@pytest.mark.parametrize(
    ("size", "ways"),
    [
        (2, ("ddp", "ddp-bucket-views", "ddp-static", "fsdp", "tp-dp")),
        (2, ("ep-dp", "pp-gpipe", "pp-1f1b")),
        (4, ("hsdp", "fsdp-tp")),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "+".join(value),
)
def test_digests_are_those_of_plain_runs(tmp_path: Path, size: int, ways: tuple[str, ...]) -> None:
    with processes(_ALIKE, size, tmp_path, *ways) as ranks:
        for rank in range(size):
            assert ranks.wait(rank, _PATIENCE) == 0, ranks.told_by(rank)
    for rank in range(size):
        told = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert list(told["gloo"]) == list(ways)
        assert told["queued"] == told["gloo"]
        ahead = {way: count for way, count in told["ahead"].items() if way != "ddp-static"}
        assert min(ahead.values()) > 50  # the host has done a whole step while the queue stood
