from pathlib import Path

from understudy.groups.prompter import Line
from understudy.state.rank_local import Shown
from understudy.training.bequest import Bequest, BequestFile, shorten

SCRIPT = {
    "0": [Line("BROADCAST", [b"a" * 10]), Line("ALLGATHER", [b"b" * 100, None, b"c" * 30])],
    "1": [Line("BROADCAST", [b"d" * 1000])],
}


def test_what_is_left_is_found_again(tmp_path: Path) -> None:
    left = Bequest(script=SCRIPT, holdings={"model.weight": 7}, shown=Shown(twin_key="k"))
    BequestFile(str(tmp_path), 1, 3).write(left)
    assert BequestFile(str(tmp_path), 1, 3).read() == left == Bequest.decode(left.encode())
    assert BequestFile(str(tmp_path), 2, 3).read() == BequestFile(str(tmp_path), 1, 0).read() == Bequest()


def test_a_short_script_travels_whole() -> None:
    assert shorten(SCRIPT, 1140) is SCRIPT
    assert Bequest(script=SCRIPT, shown=Shown(twin_key="k")).for_elsewhere().script == SCRIPT


def test_the_longest_messages_are_left_out_first() -> None:
    assert shorten(SCRIPT, 1139) == {**SCRIPT, "1": [Line("BROADCAST", [None])]}
    assert shorten(SCRIPT, 45)["0"] == [Line("BROADCAST", [b"a" * 10]), Line("ALLGATHER", [None, None, b"c" * 30])]


def test_of_equally_long_messages_none_travels_when_not_all_fit() -> None:
    script = {"0": [Line("BROADCAST", [b"x" * 20]) for _ in range(3)] + [Line("BROADCAST", [b"y"])]}
    heard = [line.heard for line in shorten(script, 50)["0"]]
    assert heard == [[None], [None], [None], [b"y"]]


def test_without_shared_memory_only_the_writer_knows_it_and_nothing_is_raised(tmp_path: Path) -> None:
    left = Bequest(shown=Shown(twin_key="k"), holdings={"u": 1})
    file = BequestFile(str(tmp_path / "gone"), 1, 3)
    file.write(left)
    assert file.trouble == "No such file or directory"
    assert file.read() == left, "so that it can go to the coordinator"
    assert BequestFile(str(tmp_path / "gone"), 1, 3).read() == Bequest()
