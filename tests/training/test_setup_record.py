from pathlib import Path

from understudy.groups.setup_replay import Op
from understudy.state.rank_local_buffers import Shown
from understudy.training.setup_record import SetupRecord, SetupRecordFile, shorten

RECORDING = {
    "0": [Op("BROADCAST", [b"a" * 10]), Op("ALLGATHER", [b"b" * 100, None, b"c" * 30])],
    "1": [Op("BROADCAST", [b"d" * 1000])],
}


def test_what_is_left_is_found_again(tmp_path: Path) -> None:
    left = SetupRecord(recording=RECORDING, holdings={"model.weight": 7}, shown=Shown(twin_key="k"))
    SetupRecordFile(str(tmp_path), 1, 3).write(left)
    assert SetupRecordFile(str(tmp_path), 1, 3).read() == left == SetupRecord.decode(left.encode())
    assert SetupRecordFile(str(tmp_path), 2, 3).read() == SetupRecordFile(str(tmp_path), 1, 0).read() == SetupRecord()


def test_a_short_script_travels_whole() -> None:
    assert shorten(RECORDING, 1140) is RECORDING
    assert SetupRecord(recording=RECORDING, shown=Shown(twin_key="k")).for_elsewhere().recording == RECORDING


def test_the_longest_messages_are_left_out_first() -> None:
    assert shorten(RECORDING, 1139) == {**RECORDING, "1": [Op("BROADCAST", [None])]}
    assert shorten(RECORDING, 45)["0"] == [Op("BROADCAST", [b"a" * 10]), Op("ALLGATHER", [None, None, b"c" * 30])]


def test_of_equally_long_messages_none_travels_when_not_all_fit() -> None:
    recording = {"0": [Op("BROADCAST", [b"x" * 20]) for _ in range(3)] + [Op("BROADCAST", [b"y"])]}
    heard = [line.heard for line in shorten(recording, 50)["0"]]
    assert heard == [[None], [None], [None], [b"y"]]


def test_without_shared_memory_only_the_writer_knows_it_and_nothing_is_raised(tmp_path: Path) -> None:
    left = SetupRecord(shown=Shown(twin_key="k"), holdings={"u": 1})
    file = SetupRecordFile(str(tmp_path / "gone"), 1, 3)
    file.write(left)
    assert file.trouble == "No such file or directory"
    assert file.read() == left, "so that it can go to the coordinator"
    assert SetupRecordFile(str(tmp_path / "gone"), 1, 3).read() == SetupRecord()
