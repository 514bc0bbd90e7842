"""A device that runs behind comes to rest before anything is said; one that does not ends its process."""

from typing import NoReturn

import pytest

from understudy.devices import in_use
from understudy.devices.cpu import Cpu
from understudy.errors import DeviceLost
from understudy.training.device_rest import DeviceRest, NothingQueued, rest_of


class Ended(Exception):
    pass


class Late(Cpu):
    asynchronous = True

    def __init__(self, *hopeless: str) -> None:
        self.told: list[str] = []
        self._hopeless = hopeless

    def drain(self, within: float | None) -> None:
        self._do("drain" if within is not None else "settle")

    def probe(self, within: float) -> None:
        assert within > 0
        self._do("probe")

    def _do(self, what: str) -> None:
        self.told.append(what)
        if what in self._hopeless:
            raise DeviceLost(f"no {what}")

    def is_lost(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)


def end(why: str) -> NoReturn:
    raise Ended(why)


def rest(device: Late) -> DeviceRest:
    return DeviceRest(device, lambda: device.told.append("break"), end)


def test_first_the_break_then_the_drain_then_the_probe() -> None:
    device = Late()
    rest(device).come()
    assert device.told == ["break", "drain", "probe"]


@pytest.mark.parametrize("hopeless", ["drain", "probe"])
def test_what_does_not_come_to_rest_ends_the_process(hopeless: str) -> None:
    with pytest.raises(Ended, match=f"no {hopeless}"):
        rest(Late(hopeless)).come()


def test_an_error_that_says_so_ends_the_process_and_no_other() -> None:
    device = Late()
    rest(device).look_at(RuntimeError("the script's own"))
    for fatal in (MemoryError("sticky"), DeviceLost("its event cannot be asked")):
        with pytest.raises(Ended):
            rest(device).look_at(fatal)


def test_who_reads_waits_without_a_deadline_and_breaks_nothing() -> None:
    device = Late()
    rest(device).settle()
    assert device.told == ["settle"]
    with pytest.raises(Ended):
        rest(Late("settle")).settle()


def test_the_path_is_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_use, "_settle", None)
    assert isinstance(rest_of(Cpu(), None), NothingQueued)
    assert in_use._settle is None
    assert isinstance(rest_of(Late(), None), DeviceRest)
    assert in_use._settle is not None
