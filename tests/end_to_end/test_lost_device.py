"""A rank is lost with its device, on a host that believes to have devices: a spare with another one takes over."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.end_to_end.running import PATIENCE, SCRIPTS

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def test_a_rank_goes_on_with_another_device_and_none_is_put_on_the_lost_one(tmp_path: Path) -> None:
    command = (sys.executable, str(SCRIPTS / "on_made_up_devices.py"), str(tmp_path))
    script = (str(SCRIPTS / "loses_its_device.py"), str(tmp_path))
    ended = subprocess.run((*command, *script), capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = (tmp_path / "run" / "ledger" / "decisions.jsonl").read_text().splitlines()
    told = [(line["code"], line["fields"]) for line in map(json.loads, lines) if line.get("kind") == "device"]
    placed = [(code, fields["member"], fields["device"]) for code, fields in told if "member" in fields]
    assert placed[:2] == [("spare_device", "m-2", 2), ("shadow", "m-3", 0)]
    assert all(device != 1 for _, _, device in placed)
    (excluded,) = [fields for code, fields in told if code == "device_excluded"]
    assert excluded["device"] == 1 and "Xid 79" in json.dumps(excluded["why"])
    (moved,) = [fields["ranks"][0]["fields"] for code, fields in told if code == "on_other_devices"]
    assert (moved["rank"], moved["former"], moved["device"]) == (1, 1, 2)
    views = {member: (tmp_path / f"{member}.view").read_text() for member in ("m-0", "m-1", "m-2")}
    assert views == {"m-0": "as inherited", "m-1": "as inherited", "m-2": "0,1,2"}
