"""`understudy config check`: what files set, what is wrong, what differs between hosts."""

from dataclasses import fields
from pathlib import Path

import pytest

from understudy.cli import config_differences
from understudy.cli.config_check import check
from understudy.cli.config_differences import OF_A_HOST, Kind, differences
from understudy.cli.config_file import COMMANDS, keys_of
from understudy.cli.main import main
from understudy.coordinator.origin import differing_settings
from understudy.protocol.policy import Policy

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "configuration-example.toml"
HOST = '[run]\nnnodes = 2\nnproc-per-node = 2\ncoordinator = "boss:29400"\n'


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def differing(folder: Path, one: str, other: str) -> dict[str, Kind]:
    files = [check(written(folder, "one", one)), check(written(folder, "other", other))]
    assert not any(file.wrong for file in files), files
    return {found.key: found.kind for found in differences(files)}


def test_the_example_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(EXAMPLE), str(EXAMPLE)]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{EXAMPLE}: right") and "no setting differs (2 files compared)" in told


def test_what_a_file_sets_and_what_is_not_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "[run]\nspares = 1\nnproc-per-node = 4\nstep-timeout-min = 5\nnode-rank = 1\n"
    text += "[policy.limits]\nstep-timeout-min = 7\nhost-quarantine = 60\n"
    path = written(tmp_path, "job", text)
    assert main(["config", "check", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: right, sets 6 keys",
        "  run.spares = 1  (the default)",
        "  run.nproc-per-node = 4",
        "  run.step-timeout-min = 5  (default 10.0)",
        "  run.node-rank = 1",
        "  policy.limits.step-timeout-min = 7  (no effect: run.step-timeout-min is set)",
        "  policy.limits.host-quarantine = 60  (default 600.0)",
        "  note: --node-rank has no effect on one host",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[run]\nspars = 1\nlissen = 2", "run.spars"),
        ("[run]\nbusy-timeout = 1", "--busy-timeout 1"),
        ("[run]\nnnodes = 3", "many hosts need --store"),
        ("[run]\ncheckpoint-every = 3", "--checkpoint-every 3"),
        ("[run\n", "job.toml"),
        ('[run]\npolicy = "/nowhere/policy.toml"', "--policy /nowhere/policy.toml"),
        ('[run]\n"\\u001b[2J" = 1', "run.?[2J: there is no such key"),
    ],
)
def test_what_is_wrong_is_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    right, path = written(tmp_path, "right", HOST), written(tmp_path, "job", text)
    assert main(["config", "check", str(right), str(path)]) == 2
    told = capsys.readouterr().out
    assert f"{right}: right" in told and f"{path}: wrong" in told and "\x1b" not in told
    assert any("WRONG" in line and said in line for line in told.splitlines())


def test_differences_that_the_coordinator_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = written(tmp_path, "one", f"{HOST}node-rank = 0\nbusy-timeout = 90\nledger-digest-every = 10\n")
    other = written(tmp_path, "other", f"{HOST}node-rank = 1\n[policy.recovery.swap]\nbudget = 3")
    assert main(["config", "check", str(one), str(other)]) == 1
    told = capsys.readouterr().out
    assert told[told.index("these settings differ") :].splitlines() == [
        "these settings differ (2 files compared)",
        "  must be equal, or the coordinator refuses the host:",
        f"    run.busy-timeout: 90.0 in {one}; 60.0 in {other}",
        f"    policy.recovery.swap.budget: not set in {one}; 3 in {other}",
        "  may differ:",
        f"    run.node-rank: 0 in {one}; 1 in {other}",
        "  differ, and the coordinator does not compare them: make sure that it is meant:",
        f"    run.ledger-digest-every: 10 in {one}; 0 in {other}",
    ]


def test_what_is_a_hosts_own_is_code_0(tmp_path: Path) -> None:
    own = '{}node-rank = {}\nlocal-addr = "10.0.0.{}"\nhost-name = "h{}"\ncerts = "c{}"\nspares = {}\n'
    files = [str(written(tmp_path, f"h{n}", own.format(HOST, n, n, n, n, n))) for n in (0, 1)]
    assert main(["config", "check", *files]) == 0


def test_the_same_by_another_key_is_no_difference(tmp_path: Path) -> None:
    assert differing(tmp_path, f"{HOST}step-timeout-min = 5", f"{HOST}[policy.limits]\nstep-timeout-min = 5") == {}
    assert (
        differing(
            tmp_path, f"{HOST}peer-snapshot-every = 2", f"{HOST}[policy.recovery.peer-memory]\nsnapshot-every = 2"
        )
        == {}
    )
    assert differing(tmp_path, f"{HOST}no-degrade = true", f"{HOST}[policy.recovery.degrade]\nallowed = false") == {}
    assert differing(
        tmp_path, f"{HOST}peer-snapshot-every = 2", f"{HOST}[policy.recovery.peer-memory]\nsnapshot-every = 3"
    ) == {"run.peer-snapshot-every": Kind.MUST_BE_EQUAL}


def test_a_job_has_one_name(tmp_path: Path) -> None:
    assert differing(tmp_path, f'{HOST}job = "a"', '[coordinator]\njob = "b"') == {"job": Kind.MUST_BE_EQUAL}
    assert differing(tmp_path, f'{HOST}job = "a"', '[coordinator]\njob = "a"\nstore = "etcd://e:2379"') == {}
    both = check(written(tmp_path, "both", f'{HOST}job = "a"\n[coordinator]\n'))
    assert [found.key for found in differences([both])] == ["job"]


def test_coordinators_of_one_job(tmp_path: Path) -> None:
    text = '[coordinator]\nlisten = "{}:29400"\nstore = "etcd://{}:2379"\n'
    assert differing(tmp_path, text.format("a", "a"), text.format("b", "b")) == {
        "coordinator.listen": Kind.MAY_DIFFER,
        "coordinator.store": Kind.NOT_COMPARED,
    }


def test_what_must_be_equal_is_what_the_coordinator_compares() -> None:
    """Every field of the policy that a flag can change is found through a flag; the rest no flag sets."""
    found = set()
    for key, action in keys_of("run").items():
        values = [
            "1" if key in ("nnodes", "nproc-per-node") else action.default,
            True if action.nargs == 0 else 7 if action.type is int else 7.5 if action.type is float else "7",
        ]
        policies = [config_differences._policy_with(key, value) for value in values if value is not None]
        one, other = policies[0], policies[-1]
        if isinstance(one, Policy) and isinstance(other, Policy):
            found.update(differing_settings(one, other))
        if one != other:
            assert key not in OF_A_HOST["run"], f"{key} must be equal on all hosts"
    assert found <= {setting.name for setting in fields(Policy)}
    assert {"world_size", "hosts", "max_start_overs", "rungs", "checkpoints"} <= found


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_a_hosts_own_are_flags(command: str) -> None:
    assert OF_A_HOST[command] <= set(keys_of(command))
