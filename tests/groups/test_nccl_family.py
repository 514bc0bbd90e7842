"""What the family of NCCL decides, with stand-ins for its backends; and what torch's host code does without a GPU."""

import json
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import ErrorType

from understudy.groups.families import nccl
from understudy.groups.families.abortable import Communicators
from understudy.groups.families.nccl import Nccl

HOUR = timedelta(hours=1)


class Backend:
    def __init__(self, aborted: list[str] | None = None, name: str = "") -> None:
        self.error, self._aborted, self._name = ErrorType.SUCCESS, aborted, name

    def get_error(self) -> ErrorType:
        return self.error

    def abort(self) -> None:
        assert self._aborted is not None
        self._aborted.append(self._name)


class Groups:
    """Of one process: `there` are those that the script has."""

    def __init__(self, *names: str) -> None:
        self.there, self.aborted = set(names), list[str]()
        self.links = Communicators(lambda name: name in self.there)
        self.backends = {name: Backend(self.aborted, name) for name in names}
        for name in names:
            self.form(name)

    def form(self, name: str, **how: Any) -> None:
        with self.links.forming(name, **how):
            self.links.hold(name, self.backends[name])


def test_an_error_state_of_any_group_is_a_loss() -> None:
    groups = Groups("0", "1")
    assert not groups.links.broken()
    groups.backends["1"].error = ErrorType.COMM_ERROR
    assert groups.links.broken()


def test_a_break_aborts_each_communicator_once_and_counts_before_anything_is_freed() -> None:
    groups = Groups("0", "1")
    seen: list[bool] = []
    groups.backends["0"].abort = lambda: seen.append(groups.links.broken())  # type: ignore[method-assign]
    assert groups.links.break_all() == 2 and seen == [True]
    assert groups.links.break_all() == 0 and groups.aborted == ["1"]
    assert groups.links.broken(), "whatever the backends say"


def test_what_is_formed_again_is_whole() -> None:
    groups = Groups("0", "1")
    groups.links.break_all()
    groups.form("0", fresh=True)
    assert not groups.links.broken(), "what was before is forgotten"
    assert groups.links.break_all() == 1


def test_a_group_that_is_being_connected_is_left_alone() -> None:
    groups = Groups("0", "1")
    groups.backends["1"].error = ErrorType.COMM_ERROR
    with groups.links.forming("1"):
        groups.links.hold("1", groups.backends["1"])
        assert not groups.links.broken() and groups.links.break_all() == 1 and groups.aborted == ["0"]
    assert groups.links.break_all() == 1


def test_a_group_that_the_script_has_destroyed_is_no_loss() -> None:
    groups = Groups("0", "1")
    groups.backends["1"].error = ErrorType.COMM_ERROR
    groups.there.discard("1")
    assert not groups.links.broken() and groups.links.break_all() == 1 and groups.aborted == ["0"]


@pytest.mark.parametrize(
    "settings",
    [
        {"TORCH_DIST_USE_NCCL2": "0"},
        {"TORCH_DISTRIBUTED_DEBUG": "detail"},
        {"TORCH_NCCL_BLOCKING_WAIT": "1"},
        {"TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1"},
    ],
)
def test_settings_with_which_nothing_could_be_recovered_are_refused(settings: dict[str, str]) -> None:
    (name,) = settings
    assert name in str(Nccl().objection(settings))


def test_harmless_settings_are_not_refused() -> None:
    harmless = {"TORCH_DISTRIBUTED_DEBUG": "INFO", "TORCH_NCCL_BLOCKING_WAIT": "0", "TORCH_DIST_USE_NCCL2": "1"}
    assert Nccl().objection({}) is None and Nccl().objection(harmless) is None


def test_a_group_has_seconds_to_connect_and_not_the_whole_timeout_of_the_job() -> None:
    assert Nccl().connect_within(HOUR, 8) < Nccl().connect_within(HOUR, 1024) < timedelta(minutes=2)
    assert Nccl().connect_within(timedelta(seconds=3), 8) == timedelta(seconds=3)


def test_the_rank_s_own_device_is_current_where_the_communicator_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_device", told.append)
    monkeypatch.setattr(nccl, "reconfigure", lambda *given: told.append(given))
    where = torch.device("cuda", 5)
    Nccl().connect("backend", 7, ["a", "b"], HOUR, where)
    assert told == [where, ("backend", 7, ["a", "b"], HOUR)]


_HOST_HALF = """
import json, os
from datetime import timedelta
import torch, torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from understudy.groups.families.abortable import Communicators
from understudy.groups.families.nccl import Nccl
backend = Nccl().make(HashStore(), 1, [4, 6], timedelta(seconds=5))
links = Communicators(lambda _: True)
with links.forming("g"):
    links.hold("g", backend)
found = {
    "class": type(backend).__name__,
    "reconfigurable": backend.options.enable_reconfigure and backend.supports_reconfigure,
    "handle": backend.get_reconfigure_handle().split(":")[:2],
    "well": not links.broken(),
    "place": [backend.rank(), backend.size()],
}
try:
    backend.allreduce([torch.ones(1)])
    found["before"] = ""
except RuntimeError as error:
    found["before"] = str(error)
print(json.dumps(found), flush=True)
os._exit(0)  # without a driver torch ends a process that takes this object apart
"""


@pytest.mark.processes
def test_torchs_own_backend_is_made_reconfigurable_and_has_no_communicator_yet() -> None:
    command = [sys.executable, "-c", _HOST_HALF]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("before")
    assert found == {
        "class": "ProcessGroupNCCL2",
        "reconfigurable": True,
        "handle": ["nccl2", "1"],
        "well": True,
        "place": [1, 2],
    }
