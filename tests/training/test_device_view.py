"""A spare sees its own device under the number of its place, once it knows that."""

import os
from collections.abc import Mapping, Sequence

import pytest
from tests.protocol.test_job_stories import m

from understudy.devices import views
from understudy.devices.cpu import Cpu
from understudy.errors import UsageError
from understudy.foundation.ids import Generation, Rank
from understudy.foundation.settings import WorkerSettings
from understudy.protocol.commands import AssignRank
from understudy.protocol.hosts import THIS_HOST
from understudy.training import device_view


class Numbered(Cpu):
    """Is seen by its number, like a device of CUDA."""

    used = False

    def touched(self) -> bool:
        return self.used

    def view(self, devices: Sequence[str], own: int, at: int) -> Mapping[str, str]:
        return {views.VARIABLE: views.arranged(devices, own, at)}


def settings(*devices: str) -> WorkerSettings:
    return WorkerSettings(
        socket="s",
        member=m(2),
        token="t",
        run_dir="r",
        progress_file="p",
        store_host="h",
        store_port=1,
        devices=devices,
    )


def assigned(slot: int, device: int | None) -> AssignRank:
    return AssignRank(
        member=m(2),
        rank=Rank(slot),
        slot=slot,
        store=THIS_HOST,
        generation=Generation(2),
        founded_in=Generation(1),
        founding=False,
        world_size=2,
        local_world_size=2,
        device=device,
    )


@pytest.fixture(autouse=True)
def of_its_birth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(views.VARIABLE, "8,6,7")


@pytest.mark.parametrize(
    ("slot", "device", "view"),
    [(0, 2, "8,7,6"), (1, 2, "6,8,7"), (1, 1, "6,7,8"), (1, None, "6,7,8")],
    ids=["a spare device as rank 0", "as rank 1", "a shadow", "a coordinator that does not know devices"],
)
def test_its_own_device_has_the_number_of_its_place(slot: int, device: int | None, view: str) -> None:
    device_view.settle(Numbered(), settings("6", "7", "8"), assigned(slot, device))
    assert os.environ[views.VARIABLE] == view


def test_a_process_of_which_nothing_was_decided_sees_what_it_saw() -> None:
    kind = Numbered()
    kind.used = True
    device_view.require_open(kind, settings())
    device_view.settle(kind, settings(), assigned(1, None))
    assert os.environ[views.VARIABLE] == "8,6,7"


def test_a_spare_that_has_used_a_device_already_is_refused_before_it_is_needed() -> None:
    kind = Numbered()
    kind.used = True
    with pytest.raises(UsageError, match=r"below understudy\.join"):
        device_view.require_open(kind, settings("6", "7"))
    with pytest.raises(UsageError, match=r"cuda:LOCAL_RANK"):
        device_view.settle(kind, settings("6", "7"), assigned(0, 1))


def test_a_place_beyond_the_devices_is_refused() -> None:
    with pytest.raises(UsageError, match="there are 2 devices"):
        device_view.settle(Numbered(), settings("6", "7"), assigned(2, 1))


def test_a_worker_is_told_the_devices_of_its_host() -> None:
    told = settings("GPU-1", "GPU-2").to_environment()
    found = WorkerSettings.from_environment(told)
    assert found is not None and found.devices == ("GPU-1", "GPU-2")
    assert "UNDERSTUDY_DEVICES" not in settings().to_environment(), "hosts without devices have the same as ever"
