"""Counters of devices: reading them, finding a rank's own, judging them. No device is needed; none was ever seen."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.detection.contract import Action, Evidence, Look, RankLook
from understudy.detection.device_health import DeviceHealth, numbers_of, parse
from understudy.detection.progress import Place, Progress
from understudy.foundation.ids import MemberId, Rank
from understudy_testkit.faults.fake_exporter import page_of, uuid_of

XID, DBE, TEMP = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_GPU_TEMP"
REMAP, REPLAY = "DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"


def test_what_an_exporter_serves_is_read() -> None:
    devices = parse(page_of({0: {TEMP: 41, XID: 0}, 1: {TEMP: 52}}))
    assert [(device.index, device.uuid) for device in devices] == [(0, uuid_of(0)), (1, uuid_of(1))]
    assert devices[0].numbers == {TEMP: 41.0, XID: 0.0}


def test_odd_lines_are_read_or_passed_over() -> None:
    text = "\n".join(
        [
            "# HELP x y",
            'x{gpu="0",name="a \\"quoted\\", name\\\\"} 1.5e3 1700000000000',
            'y{gpu="0"} NaN',
            'z{gpu="0"} +Inf',
            'x{gpu="one"} 3',
            "x 4",
            'x{gpu="0"',
            "",
            'x{gpu="0",process="2"} 7',
        ]
    )
    (device,) = parse(text)
    assert (device.index, device.numbers) == (0, {"x": 1500.0}), "of several the largest"


@given(st.text(max_size=300))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    parse(text)
    parse(f'x{{gpu="0",{text}}} 1')


@pytest.mark.parametrize(
    ("local_rank", "visible", "temperature"),
    [
        (1, None, 51.0),
        (1, "", 51.0),
        (0, "2,3", 52.0),
        (1, f"{uuid_of(3)},{uuid_of(0)}", 50.0),
        (0, "GPU-00000003", 53.0),
        (2, "2,3", None),
        (9, None, None),
    ],
)
def test_the_device_of_a_rank(local_rank: int, visible: str | None, temperature: float | None) -> None:
    devices = parse(page_of({index: {TEMP: 50.0 + index} for index in range(4)}))
    assert numbers_of(local_rank, devices, visible).get(TEMP) == temperature


class Watched:
    """One rank with one device, looked at once per fetch."""

    def __init__(self) -> None:
        self.detector, self.now = DeviceHealth(), 0.0

    def show(self, numbers: Mapping[str, float], member: str = "m-0") -> list[Evidence]:
        self.now += 5.0
        page = Progress(1, 1, 1, 0.0, Place.IN_STEP)
        seen = RankLook(member=MemberId(member), rank=Rank(0), page=page, numbers=numbers)
        looks = [Look(now=self.now + look, ranks={seen.member: seen}) for look in range(3)]
        return [evidence for look in looks for evidence in self.detector.look(look)]


@pytest.mark.parametrize(
    ("before", "after", "action", "words"),
    [
        ({XID: 0}, {XID: 79}, Action.REPLACE, "fallen off the bus"),
        ({XID: 0}, {XID: 13}, Action.NOTE, "program"),
        ({XID: 0}, {XID: 1234}, Action.NOTE, "Xid 1234"),
        ({DBE: 3}, {DBE: 4}, Action.REPLACE, "grew by 1 to 4"),
        ({REPLAY: 10}, {REPLAY: 500}, Action.NOTE, "grew by 490"),
        ({REMAP: 0}, {REMAP: 1}, Action.REPLACE, "could not be remapped"),
    ],
)
def test_a_bad_sign_is_said_once(before: dict[str, float], after: dict[str, float], action: Action, words: str) -> None:
    watched = Watched()
    assert watched.show(before) == []
    (evidence,) = watched.show(dict(after))
    assert evidence.action is action and words in evidence.text and evidence.text.startswith("the device of rank 0")
    assert watched.show(dict(after)) == [] and watched.show(dict(after)) == []


def test_what_was_counted_before_we_came_is_no_news_but_a_bad_state_is() -> None:
    watched = Watched()
    assert watched.show({XID: 48.0, DBE: 7.0, REPLAY: 1e6}) == []
    (evidence,) = watched.show({REMAP: 1.0}, "m-1")
    assert evidence.member == "m-1"


def test_heat_is_said_when_it_lasts_and_again_when_it_comes_back() -> None:
    watched = Watched()
    assert watched.show({TEMP: 95}) == [] and watched.show({TEMP: 95}) == []
    assert len(watched.show({TEMP: 96})) == 1
    assert watched.show({TEMP: 97}) == [] and watched.show({TEMP: 60}) == []
    assert [len(watched.show({TEMP: 95})) for _ in range(4)] == [0, 0, 1, 0]


def test_a_counter_that_starts_over_or_goes_missing_is_no_alarm() -> None:
    watched = Watched()
    watched.show({DBE: 5})
    assert watched.show({DBE: 0}) == [] and watched.show({}) == [] and watched.show({TEMP: 50}) == []
    assert watched.show({DBE: 9}) == []
