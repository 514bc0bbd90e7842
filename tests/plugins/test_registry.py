"""Plugins are found, refused with a sentence that says what to do, or left out; none ends a job."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.plugins.made_up_packages import FINE, install

from understudy.errors import PluginError, SettingsError
from understudy.plugins import registry
from understudy.plugins.kinds import DETECTOR, KINDS, Kind

OURS = ["straggler", "device"]


def usable() -> tuple[list[str], list[str]]:
    """Names of the detectors that work, and what was said of the others."""
    said: list[str] = []
    return list(registry.usable(DETECTOR, said.append)), said


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_our_own_keep_the_contract_of_their_kind(kind: Kind) -> None:
    assert list(registry.ours(kind)) == list(kind.built_in)
    assert kind.group == f"understudy.{kind.name}s"


def test_a_plugin_of_another_package_is_found_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "acme", {DETECTOR.group: {"fine": "acme_found:Fine"}}, {"acme_found": FINE})
    assert usable() == ([*OURS, "fine"], [])
    *_, found = registry.find(DETECTOR)
    assert str(found) == "the detector 'fine' of acme 1.0" and not found.built_in
    assert type(registry.named(DETECTOR, "fine", "--detectors fine")).__name__ == "Fine"


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        (
            "contract_version = 2",
            "the detector 'fine' of acme 1.0 is left out: it was written for version 2 of the contract of detectors, "
            f"and understudy {version('understudy')} has version 1: install a newer understudy, or an older acme",
        ),
        (
            "contract_version = 0",
            "the detector 'fine' of acme 1.0 is left out: it was written for version 0 of the contract of detectors, "
            f"and understudy {version('understudy')} has version 1: install a newer acme, or an older understudy",
        ),
        (
            "pass",
            "the detector 'fine' of acme 1.0 is left out: it does not say for which version of the contract it was "
            "written; if it is for this one, its class needs `contract_version = 1`",
        ),
    ],
    ids=["newer", "older", "silent"],
)
def test_another_version_of_the_contract_is_refused(
    stated: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    module = f"acme_{request.node.callspec.id}"
    entries = {DETECTOR.group: {"fine": f"{module}:Fine"}}
    install(tmp_path, monkeypatch, "acme", entries, {module: FINE.replace("contract_version = 1", stated)})
    assert usable() == (OURS, [sentence])
    with pytest.raises(SettingsError) as asked:
        registry.named(DETECTOR, "fine", "--detectors fine")
    assert str(asked.value) == f"--detectors fine: {sentence}"


_BROKEN = {
    "raises": ("import there_is_no_such_module", "cannot be loaded.*ModuleNotFoundError: No module named"),
    "ends": ("raise SystemExit('bye')", "cannot be loaded.*SystemExit: bye"),
    "empty": ("", "cannot be loaded.*AttributeError"),
    "arguments": (FINE.replace("def look", "def __init__(self, limit): ...\n\n    def look"), "cannot be made.*limit"),
    "no_method": (FINE.replace("look", "glance"), r"it is no Detector, see understudy\.detection\.contract"),
    "no_class": ("class Value:\n    contract_version = 1\n\n\nFine = Value()\n", "names a Value, not a class"),
    "lines": ("raise ValueError('one\\n\\x1b[2Jtwo')", "ValueError: one  .2Jtwo$"),
}


@pytest.mark.parametrize("how", _BROKEN)
def test_a_broken_plugin_is_named_once_and_left_out(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, complaint = _BROKEN[how]
    install(
        tmp_path,
        monkeypatch,
        "acme",
        {DETECTOR.group: {"fine": f"acme_broken_{how}:Fine"}},
        {f"acme_broken_{how}": source},
    )
    names, said = usable()
    assert names == OURS and len(said) == 1
    assert said[0].startswith("the detector 'fine' of acme 1.0 ") and said[0].isprintable()
    with pytest.raises(SettingsError, match=f"--detectors fine: .*{complaint}"):
        registry.named(DETECTOR, "fine", "--detectors fine")


def test_a_name_of_ours_stays_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "acme", {DETECTOR.group: {"straggler": "acme_ours:Fine"}}, {"acme_ours": FINE})
    names, (said,) = usable()
    assert names == OURS and "understudy has a detector of that name itself" in said
    assert type(registry.named(DETECTOR, "straggler", "--detectors straggler")).__name__ == "StragglerDetector"


def test_a_script_may_bring_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", [])
    registry.register(DETECTOR, "fine", "nowhere:Fine")
    registry.register(DETECTOR, "fine", "understudy.detection.straggler:StragglerDetector")  # the last one counts
    assert usable() == ([*OURS, "fine"], [])
    *_, found = registry.find(DETECTOR)
    assert str(found) == "the detector 'fine' of this script" and not found.built_in
    registry.register(DETECTOR, "device", "nowhere:Fine")
    assert usable()[0] == [*OURS, "fine"], "a name of ours stays ours"


def test_of_two_packages_with_one_name_neither_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("acme", "bravo"):
        module = f"twice_{package}"
        install(tmp_path, monkeypatch, package, {DETECTOR.group: {"fine": f"{module}:Fine"}}, {module: FINE})
    names, said = usable()
    assert names == OURS
    assert ["acme" in said[0], "bravo" in said[1]] == [True, True]
    assert all(text.endswith("2 packages bring a detector of that name; uninstall all but one") for text in said)


def test_a_name_that_fits_no_flag_and_no_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "acme", {DETECTOR.group: {"../Fine": "acme_named:Fine"}}, {"acme_named": FINE})
    names, (said,) = usable()
    assert names == OURS and "a name has small letters" in said


def test_a_name_that_is_not_there_is_an_error_that_names_the_flag_and_what_there_is() -> None:
    with pytest.raises(SettingsError) as asked:
        registry.named(DETECTOR, "none", "--detectors none")
    assert str(asked.value) == (
        "--detectors none: no installed package has a detector of that name; there is device, straggler"
    )


def test_damaged_metadata_of_any_package_leaves_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(**_: str) -> object:
        raise TypeError("no = in it")

    monkeypatch.setattr(registry, "entry_points", damaged)
    names, (said,) = usable()
    assert names == OURS and "metadata of the installed packages cannot be read (no = in it)" in said


def test_our_own_are_loaded_by_name_without_a_look_at_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda **_: pytest.fail("it looked"))
    for name in OURS:
        registry.named(DETECTOR, name, f"--detectors {name}")


def test_nothing_is_loaded_by_looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "raise AssertionError('it was loaded')"
    install(tmp_path, monkeypatch, "acme", {DETECTOR.group: {"fine": "acme_lazy:Fine"}}, {"acme_lazy": source})
    *_, found = registry.find(DETECTOR)
    with pytest.raises(PluginError, match="it was loaded"):
        found.load()


def test_from_a_source_folder_without_metadata_our_own_are_there() -> None:
    code = (
        "import importlib.metadata, sys\n"
        "def none(name): raise importlib.metadata.PackageNotFoundError(name)\n"
        "importlib.metadata.version = none\n"
        "importlib.metadata.entry_points = lambda **_: ()\n"
        "from understudy.plugins import kinds, registry\n"
        "print([str(plugin) for plugin in registry.find(kinds.STORE)])\n"
        "print('torch' in sys.modules)\n"
    )
    told = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    stores = ", ".join(f"\"the store '{name}' of understudy (not installed)\"" for name in ("memory", "etcd", "folder"))
    assert told == [f"[{stores}]", "False"]
