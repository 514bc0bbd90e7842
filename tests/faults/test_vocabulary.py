"""What counts as a change of messages that the other version could not read."""

import copy
import json
import sys
from pathlib import Path

import pytest

from understudy_testkit.faults import releases, vocabulary
from understudy_testkit.faults.vocabulary import Vocabulary, breaks, describe


def changed(kind: str, **fields: Vocabulary) -> Vocabulary:
    new = copy.deepcopy(describe())
    new["types"][kind]["fields"] |= fields
    return new


def test_a_version_can_read_itself_and_all_that_is_said_is_described() -> None:
    own = describe()
    assert breaks(own, own) == []
    expected = {"Attend", "Order", "ResumeAt", "Happened", "MemberLost", "Cause", "CauseKind", "State", "Policy"}
    assert own["types"].keys() >= expected
    assert own["types"]["ResumeAt"]["fields"]["generation"] == {"type": "int", "required": True}
    assert own["types"]["Happened"]["fields"]["event"]["type"] == "a message"
    assert not any(told.get("strict") for told in own["types"].values())


def test_a_field_with_a_default_and_a_new_kind_are_no_break() -> None:
    new = changed("Attend", mood={"type": "str", "required": False})
    new["types"]["Temperature"] = {"strict": False, "fields": {"celsius": {"type": "float", "required": True}}}
    assert breaks(describe(), new) == breaks(new, describe()) == []


def test_a_required_field_is_a_break_in_both_directions() -> None:
    new = changed("Attend", mood={"type": "str", "required": True})
    assert breaks(describe(), new) == ["this version requires Attend.mood, which the other does not send"]
    assert breaks(new, describe()) == ["the previous release requires Attend.mood, which the other does not send"]


@pytest.mark.parametrize(("name", "what"), [("Cause", "type"), ("Policy", "default")])
def test_another_type_and_another_default_of_a_setting_are_breaks(name: str, what: str) -> None:
    new = copy.deepcopy(describe())
    field = "detail" if name == "Cause" else "suspicion"
    new["types"][name]["fields"][field][what] = "other"
    (told,) = breaks(describe(), new)
    assert told.startswith(f"the {what} of {name}.{field} was ") and told.endswith("and is other")


def test_a_new_value_of_an_enumeration_and_a_reader_that_takes_nothing_new_are_breaks() -> None:
    new = copy.deepcopy(describe())
    new["types"]["CauseKind"]["values"].append("eaten")
    assert breaks(describe(), new) == ["only this version knows CauseKind 'eaten'"]
    old = copy.deepcopy(describe())
    old["types"]["HostInventory"]["strict"] = True
    new = changed("HostInventory", rack={"type": "str", "required": False})
    assert breaks(old, new) == ["the previous release refuses HostInventory with the field rack, which the other sends"]


def test_a_copy_with_another_number_has_it_and_is_told_by_the_same_file(tmp_path: Path) -> None:
    site = releases.renumbered(7, tmp_path / "site")
    told = json.loads(releases.ask(site, "-P", vocabulary.__file__))
    assert told == {**describe(), "protocol": 7}
    assert releases.ask(site, "-c", "import understudy; print(understudy.__file__)").startswith(str(site))


def test_a_commit_that_is_not_in_this_clone_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(releases.NoHistory, match="git fetch --unshallow --tags"):
        releases.find("f" * 40)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    with pytest.raises(releases.NoHistory):
        releases.previous("f" * 40)
