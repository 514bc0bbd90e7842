"""The acceptance of accelerators as a user runs it, on the emulated device: every part that needs no GPU is shown; and
it has teeth, for a product whose fence does not wait is found out.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.installed_testkit import environment

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
LIMIT = 500

BROKEN = """
from understudy.plugins import registry
from understudy.plugins.kinds import COMMUNICATOR, DEVICE


def register(name, mutant):
    from understudy_testkit.queued_device import plugins
    from understudy_testkit.queued_device.mutants import MUTANTS

    MUTANTS[mutant]()
    registry.register(COMMUNICATOR, name, f"{plugins.__name__}:QueuedFamily")
    registry.register(DEVICE, name, f"{plugins.__name__}:EmulatedDevice")


def host_arrives():
    register("host-arrives", "arrival-of-the-host")


def no_fence():
    register("no-fence", "fence-off")
"""


def doctor(folder: Path, device: str, parts: str) -> tuple[int, str, dict[str, Any], list[str]]:
    """Exit code, what it printed, its results, and the names in its archive."""
    (folder / "broken_fences.py").write_text(BROKEN)
    broken = {"host-arrives": "broken_fences:host_arrives", "no-fence": "broken_fences:no_fence"}
    command = [sys.executable, "-m", "understudy", "doctor", "--accelerators", "--device", device, "--quick"]
    command += ["--accelerators-only", parts, "--archive", str(folder / "back.tar.gz")]
    process = subprocess.Popen(
        command,
        env={**environment(folder, understudy_emulations=broken), "SECRET_OF_MINE": "open sesame"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    with tarfile.open(folder / "back.tar.gz") as packed:
        (results,) = [packed.extractfile(name) for name in packed.getnames() if name.endswith("/results.json")]
        assert results is not None
        report = json.loads(results.read())
        for name in packed.getnames():
            member = packed.extractfile(name)
            assert member is not None and b"open sesame" not in member.read(), name
        return process.returncode, output, report, packed.getnames()


def carrying(mark: str) -> list[int]:
    """Processes that were started under this mark."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(entry.name) != os.getpid() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    mark = f"ACCEPTANCE_TEST={secrets.token_hex(8)}"
    name, _, value = mark.partition("=")
    folder = tmp_path / "temporary"
    folder.mkdir()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "understudy",
            "doctor",
            "--accelerators",
            "--device",
            "queued",
            "--accelerators-only",
            "C",
        ],
        env={**environment(tmp_path), name: value, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert any("C killed" in line for line in process.stdout), "it has ended"
        assert len(carrying(mark)) > 2
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 30
    while carrying(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not carrying(mark) and not list(folder.glob("understudy-*"))


def test_what_needs_no_gpu_is_shown_on_the_emulated_device(tmp_path: Path) -> None:
    code, output, report, names = doctor(tmp_path, "queued", "A,B,C,D,E")
    verdicts = {f"{each['part']} {each['trial']}": each["verdict"] for each in report["results"]}
    assert not [name for name, verdict in verdicts.items() if verdict == "failed"], output
    assert {name for name, verdict in verdicts.items() if verdict == "not shown"} == {
        *("A gpus", "A ways", "A xids", "B context", "B pinned-word", "B copies", "C switches", "C memory-returns"),
    }
    assert code == 1, "nothing of this is shown on a GPU"
    last = output.strip().splitlines()[-1]
    assert "on an emulated device, which says nothing about a GPU" in last and "C: killed, stopped" in last
    assert report["emulated"] and report["device"] == "queued" and "SECRET_OF_MINE" not in json.dumps(report)
    assert any(name.endswith("/E-ddp/faults/run/ledger/decisions.jsonl") for name in names)
    assert {Path(name).suffix for name in names} <= {".json", ".jsonl", ".txt"}


@pytest.mark.parametrize(("device", "finds"), [("host-arrives", "ahead-fenced"), ("no-fence", "peers-abort-fenced")])
def test_a_fence_that_does_not_wait_is_found_out(tmp_path: Path, device: str, finds: str) -> None:
    code, output, report, _ = doctor(tmp_path, device, "D")
    failed = [each for each in report["results"] if each["verdict"] == "failed"]
    assert code == 1 and finds in [each["trial"] for each in failed], output
    (found,) = [each for each in failed if each["trial"] == finds]
    assert "passed its fence though its peer was lost" in found["sentence"]
