"""The policy file: every key reaches its owner, flags win over it, and what cannot be is refused by name."""

import argparse
from pathlib import Path

import pytest

from understudy.cli.policy_file import PolicyFile, read_policy_file
from understudy.cli.run_flags import read_request
from understudy.cli.run_parser import add_arguments
from understudy.errors import SettingsError
from understudy.protocol.policy import Policy
from understudy.protocol.rungs import RungLimits

EXAMPLE = Path(__file__).parents[2] / "docs" / "policy-example.toml"


def policy_of(*arguments: str) -> Policy:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args([*arguments, "--nproc-per-node", "2", __file__])
    return read_request(args, {}, Path("/runs/r1"), live=False).policy


def written(folder: Path, text: str) -> Path:
    path = folder / "policy.toml"
    path.write_text(text)
    return path


def test_the_example_has_every_key_and_mostly_defaults() -> None:
    policy = policy_of("--policy", str(EXAMPLE))
    assert policy.rungs == RungLimits(swap=100, degrade=10, peer_memory=20, restart=2, checkpoint=3)
    assert policy.peer_memory == 1
    usual = read_policy_file(EXAMPLE)
    assert usual.limits == PolicyFile().limits
    keys = {line.split("=")[0].strip() for line in EXAMPLE.read_text().splitlines() if "=" in line.split("#")[0]}
    tables = (usual.limits, usual.recovery, usual.recovery.peer_memory)
    known = {name for table in tables for name in table.__struct_encode_fields__}
    rungs = {"swap", "degrade", "peer-memory", "restart", "checkpoint"}
    assert keys == known - rungs


def test_no_file_means_defaults() -> None:
    policy = policy_of()
    assert policy.rungs == RungLimits() == RungLimits(restart=2)
    default = Policy(world_size=2)
    assert (policy.stall_floor, policy.max_replacements) == (default.stall_floor, default.max_replacements)
    assert (policy.forming_limit, policy.suspicion) == (default.forming_limit, default.suspicion)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    text = "[limits]\nstep-timeout-min = 5\nregroup-timeout = 60\n"
    text += "[recovery.restart]\nbudget = 7\n[recovery.peer-memory]\nsnapshot-every = 3"
    file = ("--policy", str(written(tmp_path, text)))
    policy = policy_of(*file)
    assert (policy.stall_floor, policy.forming_limit, policy.rungs.restart, policy.peer_memory) == (5.0, 60.0, 7, 3)
    flags = "--step-timeout-min 10 --max-restarts-from-memory 1 --peer-snapshot-every 0 --no-degrade"
    policy = policy_of(*file, *flags.split())
    assert (policy.stall_floor, policy.forming_limit, policy.rungs.restart, policy.peer_memory) == (10.0, 60.0, 1, 0)
    assert policy.rungs.degrade == 0


def test_what_is_not_allowed_has_no_budget(tmp_path: Path) -> None:
    text = "[recovery.swap]\nallowed = false\nbudget = 3\n[recovery.degrade]\nallowed = false"
    rungs = read_policy_file(written(tmp_path, text)).rungs()
    assert (rungs.swap, rungs.degrade, rungs.checkpoint) == (0, 0, None)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[recovery.swop]\nbudget = 1", "recovery.swop: there is no such key"),
        ("[recovery.swap]\nbugdet = 1", "recovery.swap.bugdet: there is no such key"),
        ("[recovery.swap]\nsnapshot-every = 1", "recovery.swap.snapshot-every"),
        ("spares = 1", "spares: there is no such key"),
        ('[recovery.swap]\nbudget = "two"', "recovery.swap.budget: expected"),
        ("[recovery.swap]\nbudget = true", "recovery.swap.budget: expected"),
        ("[recovery.swap]\nbudget = -1", "recovery.swap.budget: expected"),
        ("[recovery.swap]\nallowed = 1", "recovery.swap.allowed: expected"),
        ("[recovery]\nattempts-per-strategy = 0", "recovery.attempts-per-strategy: expected"),
        ("[limits]\nstep-timeout-min = 0", "limits.step-timeout-min: expected"),
        ("[limits]\nstep_timeout_min = 1", "limits.step_timeout_min: there is no such key"),
        ("[limits\n", "policy.toml"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named.replace(".", r"\.")):
        read_policy_file(written(tmp_path, text))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(SettingsError, match="--policy /nowhere"):
        read_policy_file(Path("/nowhere"))
