"""The configuration file: its keys are the flags, the command line wins over it, what cannot be is refused."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from understudy.cli import coordinator, main
from understudy.cli.config_file import COMMANDS, examine_config, keys_of, parser_of, read_config
from understudy.cli.run_flags import read_request
from understudy.errors import SettingsError
from understudy.protocol.policy import Policy

ROOT = Path(__file__).parents[2]


def written(folder: Path, text: str, name: str = "job.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def parsed(path: Path, *arguments: str, command: str = "run") -> argparse.Namespace:
    """As `main` does it."""
    given = [command, "--config", str(path), *arguments, *([__file__] if command == "run" else [])]
    return main.build_parser(command, read_config(path).defaults(command)).parse_args(given)


def policy_of(path: Path, *arguments: str) -> Policy:
    return read_request(parsed(path, *arguments), {}, Path("/runs/r1"), live=False).policy


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_a_key_and_takes_what_the_flag_takes(tmp_path: Path, command: str) -> None:
    """A value for each, once in a file and once on the command line."""
    values: dict[str, Any] = {}
    for key, action in keys_of(command).items():
        other = [choice for choice in action.choices or () if choice != action.default]
        plain = {int: 7, float: 2.5}.get(action.type, "7") if isinstance(action.type, type) else "7"
        values[key] = True if action.nargs == 0 else other[0] if other else plain
    lines = [f"{key} = {str(value).lower() if value is True else repr(value)}" for key, value in values.items()]
    path = written(tmp_path, "\n".join([f"[{command}]", *lines]))
    flags = [
        word for key, value in values.items() for word in ([f"--{key}"] if value is True else [f"--{key}", str(value)])
    ]
    script = ["train.py"] if command == "run" else []
    by_flags = vars(parser_of(command).parse_args([*flags, *script]))
    by_file = vars(parsed(path, command=command))
    differ = {name for name in by_flags if by_flags[name] != by_file[name]}
    assert differ <= {"config", "training_script"}
    untouched = vars(parser_of(command).parse_args(script))
    assert {name for name in untouched if untouched[name] == by_flags[name]} <= {"config", *_POSITIONAL}


_POSITIONAL = ("training_script", "training_script_args")


def test_the_command_line_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    path = written(
        tmp_path, '[run]\nspares = 3\nrun-dir = "here"\nnproc-per-node = 4\nno-progress = true\nstep-timeout-min = 5\n'
    )
    args = parsed(path)
    assert (args.spares, args.run_dir, args.nproc_per_node, args.no_progress, args.role) == (
        3,
        "here",
        "4",
        True,
        "default",
    )
    args = parsed(path, "--spares", "0", "--nproc-per-node", "1")
    assert (args.spares, args.run_dir, args.nproc_per_node) == (0, "here", "1")
    assert policy_of(path).stall_floor == 5.0 and policy_of(path, "--step-timeout-min", "6").stall_floor == 6.0


def test_a_flag_before_the_file_wins_as_well(tmp_path: Path) -> None:
    path = written(tmp_path, "[run]\nspares = 3\n")
    given = ["run", "--spares", "2", "--config", str(path), __file__, "--spares", "9"]
    args = main.build_parser("run", read_config(path).defaults("run")).parse_args(given)
    assert (args.spares, args.training_script_args) == (2, ["--spares", "9"])


def test_the_policy_may_be_in_it(tmp_path: Path) -> None:
    text = "[policy.limits]\nstep-timeout-min = 5\nbusy-timeout = 70\n"
    text += "[policy.recovery.swap]\nbudget = 2\n[run]\nbusy-timeout = 90"
    path = written(tmp_path, text)
    policy = policy_of(path)
    assert (policy.stall_floor, policy.rungs.swap, policy.busy_timeout) == (5.0, 2, 90.0)
    other = written(tmp_path, "[recovery.swap]\nbudget = 8", "policy.toml")
    policy = policy_of(path, "--policy", str(other))
    assert (policy.stall_floor, policy.rungs.swap, policy.busy_timeout) == (10.0, 8, 90.0)
    named = written(tmp_path, f'[run]\npolicy = "{other}"')
    assert policy_of(named).rungs.swap == 8


def test_one_file_for_both_commands(tmp_path: Path) -> None:
    path = written(tmp_path, '[run]\njob = "llama"\n[coordinator]\njob = "llama"\nrun-dir = "r"\nlog-format = "json"\n')
    args = parsed(path, "--listen", "127.0.0.1:0", command="coordinator")
    assert (args.job, args.run_dir, args.log_format, args.listen) == ("llama", Path("r"), "json", "127.0.0.1:0")
    assert parsed(path).job == "llama" and parsed(path).log_format == "text"


def test_a_coordinator_needs_a_folder_from_somewhere() -> None:
    with pytest.raises(SettingsError, match="--run-dir"):
        coordinator.main(parser_of("coordinator").parse_args([]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[run]\nspars = 1", "run.spars: there is no such key; the nearest is run.spares"),
        ("[run]\nnproc_per_node = 1", "run.nproc_per_node: there is no such key; the nearest is run.nproc-per-node"),
        ("[run]\nxyzzy = 1", "run.xyzzy: there is no such key"),
        ('[run]\nconfig = "other.toml"', "run.config: there is no such key"),
        ('[run]\nlisten = "a:1"', "run.listen: there is no such key; it belongs to [coordinator]"),
        ("[rum]\nspares = 1", "rum: there is no such key; the nearest is run"),
        ("spares = 1", "spares: it belongs into a table: [run]"),
        ("run = 1", "run: expected a table, [run]"),
        ('[run]\nspares = "two"', "run.spares: expected a whole number, got text"),
        ("[run]\nspares = true", "run.spares: expected a whole number, got true or false"),
        ("[run]\nspares = 1.5", "run.spares: expected a whole number, got a number"),
        ("[run]\nno-progress = 1", "run.no-progress: expected true or false, got a whole number"),
        ('[run]\ndrain-grace = "1"', "run.drain-grace: expected a number or a whole number, got text"),
        ("[run]\nrun-dir = 1", "run.run-dir: expected text, got a whole number"),
        ("[run]\ntee = 1.5", "run.tee: expected text or a whole number, got a number"),
        ('[run]\ncoordinator = ["a:1"]', "run.coordinator: expected text, got a list"),
        ('[run]\non-straggler = "mve"', "run.on-straggler: expected one of note, move"),
        ("[run.spares]\na = 1", "run.spares: expected a whole number, got a table"),
        (
            "[policy.limits]\nstep-timeout-mim = 1",
            "policy.limits.step-timeout-mim: there is no such key; the nearest is policy.limits.step-timeout-min",
        ),
        ("[policy.limits]\nstep-timeout-min = 0", "policy.limits.step-timeout-min: expected"),
        ("policy = 1", "policy: expected"),
        ('[run]\npolicy = "p.toml"\n[policy]', "run.policy: the table [policy] is in this file as well"),
        ("[run\n", "job.toml: Expected"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SettingsError) as wrong:
        read_config(path)
    assert f"--config {path}: " in str(wrong.value) and said in str(wrong.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[run]\ntoken = "hunter2"', "run.token-file"),
        ('[coordinator]\nhttp-token = "hunter2"', "coordinator.http-tokens"),
        ('[coordinator]\nstore-password = "hunter2"', "coordinator.store-password"),
        ('[run]\napi_key = "hunter2"', "run.api_key"),
        ('[coordinator]\nstore = "etcd://root:hunter2@10.0.0.1:2379"', "coordinator.store: there is a password"),
    ],
)
def test_secrets_are_refused_and_never_shown(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingsError, match="secrets do not go into this file") as wrong:
        read_config(written(tmp_path, text))
    assert named in str(wrong.value) and "hunter2" not in str(wrong.value)


def test_all_that_is_wrong_is_found_and_the_first_is_said(tmp_path: Path) -> None:
    path = written(tmp_path, "[run]\nspars = 1\nno-progress = 1\n[coordinator]\nlissen = 1\n")
    assert len(examine_config(path).complaints) == 3
    with pytest.raises(SettingsError, match=r"spars.* \(and 2 more: `understudy config check "):
        read_config(path)


def test_a_wrong_file_is_code_2_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, f'[run]\nrun-dir = "{tmp_path / "run"}"\nspars = 1')
    assert main.main(["run", "--config", str(path), __file__]) == 2
    assert f"understudy: error: --config {path}: run.spars" in capsys.readouterr().err
    assert main.main(["coordinator", "--config", str(tmp_path / "none.toml")]) == 2
    assert "none.toml: No such file" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
