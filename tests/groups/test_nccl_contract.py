"""torch's own ProcessGroupNCCL2 on a machine without a GPU: what we, and the emulated backend, take for granted of it.

A torch that changes flags, handles, rules or names fails here, before a GPU does. What needs a device is not here: see
docs/queued-device.md.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not dist.is_nccl_available(), reason="this torch is built without NCCL"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="with a driver the same calls go further; see `doctor`"),
]

_FACTS = Path(__file__).with_name("nccl_facts.py")


def ask(*arguments: str, **environment: str) -> Any:
    without = {name: value for name, value in os.environ.items() if name != "TORCH_DIST_USE_NCCL2"}
    told = subprocess.run(
        [sys.executable, str(_FACTS), *arguments],
        env={**without, "TORCH_FR_BUFFER_SIZE": "0", **environment},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def facts() -> Any:
    return ask()


def test_it_can_be_made_without_a_gpu_and_its_option_can_be_switched_later(facts: Any) -> None:
    assert facts["options"] == {
        "name": "nccl2",
        "switched off": False,
        "switched on": True,
        "blocking": 1,
        "supports": [True, True, True],
    }


def test_nothing_works_before_it_is_formed(facts: Any) -> None:
    assert set(facts["calls"]) == {"allreduce", "broadcast", "barrier", "send", "recv"}
    for error in facts["calls"].values():
        assert error.startswith("RuntimeError") and "Call reconfigure() before" in error


def test_a_handle_has_rank_uuid_and_instance(facts: Any) -> None:
    forming = facts["forming"]
    for handle in (forming["handle"], forming["handle again"], forming["handle after a failure"]):
        assert re.fullmatch(r"nccl2:1:-1:\d+:.*", handle)
    assert forming["handle"] != forming["handle again"]


def test_a_failed_attempt_leaves_it_as_if_it_had_never_been_formed(facts: Any) -> None:
    assert facts["forming"]["handle"] == facts["forming"]["handle after a failure"]
    assert facts["forming"]["error after a failure"] == "ErrorType.SUCCESS"


def test_an_attempt_ends_by_its_own_timeout(facts: Any) -> None:
    error, took = facts["forming"]["rank 1 without rank 0"]
    assert "Wait timeout" in error
    assert 0.1 < took < 10


def test_rank_0_claims_a_uuid_and_it_is_good_once(facts: Any) -> None:
    forming = facts["forming"]
    assert forming["claimed"]
    assert forming["rank 0"][0].startswith("AcceleratorError")  # it goes on to the device, which is not here
    assert "uuid 6 was already used" in forming["a used uuid"][0]


def test_a_second_attempt_waits_for_the_first(facts: Any) -> None:
    assert facts["mutex"]["second call took"] > 1.2


def test_other_threads_run_meanwhile(facts: Any) -> None:
    assert facts["mutex"]["counted"] > 20


def test_an_abort_sets_the_error_first_and_is_idempotent(facts: Any) -> None:
    """Its first call goes on to the driver, which is not here; with one it returns."""
    abort = facts["abort"]
    assert abort["before"] == "ErrorType.SUCCESS"
    assert abort["hook saw"] == ["ErrorType.COMM_ERROR"]
    assert abort["first"] == "" or "no NVIDIA driver" in abort["first"]
    assert abort["second"] == ""
    assert abort["after"] == abort["after the second"] == "ErrorType.COMM_ERROR"
    assert abort["handle"].startswith("nccl2:0:-1:")
    assert abort["call"].startswith("RuntimeError")


def test_names_of_backends(facts: Any) -> None:
    assert facts["names"] == {
        "nccl": ["_create_nccl2_process_group", "NCCL"],
        "nccl2": ["_create_nccl2_process_group", "CUSTOM"],
        "nccl-legacy": ["_create_nccl_process_group", "CUSTOM"],
    }


def test_a_variable_brings_the_former_one_back() -> None:
    assert ask("names", TORCH_DIST_USE_NCCL2="0")["names"]["nccl"] == ["_create_nccl_process_group", "NCCL"]


def test_a_group_of_torch_has_the_flag_and_groups_that_a_script_makes_have_not(facts: Any) -> None:
    group = facts["group"]
    assert group["type"] == "ProcessGroupNCCL2" and group["flag"] and not group["bound"]
    assert "No backend type associated with device type cpu" in group["tensor of the host"]
    assert "requires at least one CUDA device" in group["new_group without the flag"]


def test_a_batch_is_open_until_it_is_ended(facts: Any) -> None:
    """What `groups.open_batches` is for."""
    batches = facts["batches"]
    assert "without a matching startCoalescing" in batches["end of none"]
    assert "a batch is already active" in batches["second begin"]
    assert batches["begin"] == batches["end"] == batches["begin behind it"] == ""
