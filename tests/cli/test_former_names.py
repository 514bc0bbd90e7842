"""Every former name of a flag or key still works, says its new name on stderr, and is not in the help."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy.cli import former_names
from understudy.cli.config_file import examine_config
from understudy.cli.main import build_parser
from understudy.cli.policy_file import policy_from
from understudy.errors import SettingsError

COMMANDS = ("run", "coordinator", "doctor")
VALUES = {"--fork-first-ranks": "never"}
SWITCHES = ("--plain", "--no-nursery")


@pytest.fixture(autouse=True)
def notices_are_new() -> Iterator[None]:
    former_names.notice.cache_clear()
    yield
    former_names.notice.cache_clear()


def parsed(command: str, *arguments: str) -> argparse.Namespace:
    script = ("script.py",) if command == "run" else ()
    return build_parser(command).parse_args([command, *arguments, *script])


def owners(name: str) -> list[str]:
    return [command for command in COMMANDS if name in vars_of(command)]


def vars_of(command: str) -> set[str]:
    choices = next(a for a in build_parser(command)._actions if isinstance(a, argparse._SubParsersAction)).choices
    return {spelling for action in choices[command]._actions for spelling in action.option_strings}


@pytest.mark.parametrize(("former", "name"), former_names.FLAGS.items())
def test_a_former_flag_does_what_the_flag_does(former: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = () if former in SWITCHES else (VALUES.get(former, "7"),)
    commands = owners(name)
    assert commands, f"no command has {name}"
    for command in commands:
        for spelling in (former, "--" + former[2:].replace("-", "_")):
            former_names.notice.cache_clear()
            assert vars(parsed(command, spelling, *value)) == vars(parsed(command, name, *value))
            assert capsys.readouterr().err == (
                f"understudy: {former} is now called {name}; the former name works in this release only\n"
            )


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_has_no_former_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser(command).parse_args([command, "--help"])
    shown = capsys.readouterr().out
    assert not [former for former in former_names.FLAGS if f"{former} " in shown or f"{former}\n" in shown]


def test_the_script_keeps_flags_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    args = build_parser("run").parse_args(["run", "train.py", "--notice", "5"])
    assert (args.training_script_args, args.drain_grace) == (["--notice", "5"], 0.0)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("former", "name"), former_names.FLAGS.items())
def test_a_former_key_of_a_configuration_file(
    tmp_path: Path, former: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = next(command for command in owners(name) if command != "doctor")
    value = "true" if former in SWITCHES else f'"{VALUES[former]}"' if former in VALUES else "7"
    files = {}
    for key in (former[2:], name[2:]):
        path = tmp_path / f"{key}.toml"
        path.write_text(f"[{table}]\n{key} = {value}\n")
        files[key] = examine_config(path)
        assert files[key].complaints == ()
    assert files[former[2:]].tables == files[name[2:]].tables
    assert f"{table}.{former[2:]} is now called {table}.{name[2:]};" in capsys.readouterr().err


FORMER_POLICY = {
    "ladder": {"probation": 4, "attempts-per-rung": 6, "recovery-attempts": 7, "peer-memory": {"every": 8}},
    "limits": {"hang-floor": 1.5, "suspicion": 2, "host-patience": 3, "forming-limit": 4, "preparation-limit": 5},
}
POLICY = {
    "recovery": {
        "checked-steps": 4,
        "attempts-per-strategy": 6,
        "max-attempts": 7,
        "peer-memory": {"snapshot-every": 8},
    },
    "limits": {
        "step-timeout-min": 1.5,
        "host-quarantine": 2,
        "host-timeout": 3,
        "regroup-timeout": 4,
        "warmup-timeout": 5,
    },
}


def test_former_keys_of_a_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert policy_from(FORMER_POLICY) == policy_from(POLICY)
    said = capsys.readouterr().err
    assert "understudy: ladder is now called recovery;" in said
    assert "understudy: recovery.probation is now called recovery.checked-steps;" in said
    assert "understudy: recovery.peer-memory.every is now called recovery.peer-memory.snapshot-every;" in said
    assert "understudy: limits.suspicion is now called limits.host-quarantine;" in said


def test_a_key_under_both_of_its_names_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"limits\.hang-floor: it is now called step-timeout-min"):
        policy_from({"limits": {"hang-floor": 1.5, "step-timeout-min": 2.5}})
