"""The flags of torchrun, compared with torchrun's own parser, and what becomes of them."""

import argparse
import signal
import sys
from pathlib import Path

import pytest

from understudy.agent.logs import Std
from understudy.cli.main import build_parser
from understudy.cli.observers import load_observers
from understudy.cli.run_flags import RunRequest, read_request
from understudy.cli.run_parser import add_arguments
from understudy.errors import SettingsError

FROM_THE_ENVIRONMENT = ("--nnodes", "--nproc-per-node", "--nproc_per_node", "--node-rank", "--node_rank")
"""Without a default: what was not given may be told by a variable (`placement`)."""


def our_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser


def request(*arguments: str, environment: dict[str, str] | None = None) -> RunRequest:
    args = our_parser().parse_args([*arguments, __file__, "--lr", "3"])
    return read_request(args, environment or {}, Path("/runs/r1"), live=False)


def flags_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {flag: action for action in parser._actions for flag in action.option_strings}


def test_every_flag_of_torchrun_is_known_with_its_name_default_and_choices() -> None:
    from torch.distributed.run import get_args_parser

    theirs, ours = get_args_parser(), our_parser()
    known = flags_of(ours)
    for flag, action in flags_of(theirs).items():
        assert flag in known, f"torchrun has a flag {flag} that is not in cli/run_parser.py"
        mine = known[flag]
        assert (mine.dest, mine.nargs) == (action.dest, action.nargs), flag
        assert list(mine.choices or []) == list(action.choices or []), flag
        assert mine.default == (None if flag in FROM_THE_ENVIRONMENT else action.default), flag
    positional = [(a.dest, a.nargs) for a in theirs._actions if not a.option_strings]
    assert [(a.dest, a.nargs) for a in ours._actions if not a.option_strings] == positional


def test_the_command() -> None:
    assert request().plan.command == (sys.executable, "-u", __file__, "--lr", "3")
    other = request(environment={"PYTHON_EXEC": "/opt/python"})
    assert other.plan.command[0] == "/opt/python"
    args = our_parser().parse_args(["-m", "package.train", "-x"])
    module = read_request(args, {}, Path("/r"), live=False)
    assert module.plan.command == (sys.executable, "-u", "-m", "package.train", "-x")
    args = our_parser().parse_args(["--no-python", "sh", "-c", "true"])
    assert read_request(args, {"PATH": "/bin:/usr/bin"}, Path("/r"), live=False).plan.command == ("sh", "-c", "true")


@pytest.mark.parametrize("own", ["--step-time", "--no", "--max", "--spares", "--host"])
def test_arguments_of_a_script_are_its_own_whatever_our_flags_are_called(own: str) -> None:
    args = build_parser("run").parse_args(["run", "--spares", "2", "train.py", own, "3"])
    assert args.spares == 2 and args.training_script_args == [own, "3"]


@pytest.mark.parametrize(
    ("flags", "ranks", "is_forked", "has_fork_server"),
    [
        ("", 4, True, True),
        ("", 3, False, True),
        ("--spares 0", 3, False, False),
        ("--spares 0", 4, True, True),
        ("--fork-initial-ranks never", 4, False, True),
        ("--fork-initial-ranks never --spares 0", 4, False, False),
        ("--fork-initial-ranks always --spares 0", 3, True, True),
    ],
)
def test_who_is_forked(
    monkeypatch: pytest.MonkeyPatch, flags: str, ranks: int, is_forked: bool, has_fork_server: bool
) -> None:
    """By default the first ranks are if there are no more cores than ranks."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    plan = request("--nproc-per-node", str(ranks), *flags.split()).plan
    assert (plan.fork_founders, bool(plan.fork_server_command)) == (is_forked, has_fork_server)


def test_limits_reach_their_owners() -> None:
    flags = "--nproc-per-node 4 --spares 2 --max-restarts 9 --step-timeout-min 3 --step-timeout-factor 7"
    timeouts = "--idle-timeout 60 --busy-timeout 9"
    asked = request(
        *flags.split(),
        *timeouts.split(),
        "--shutdown-timeout",
        "11",
        "--regroup-timeout",
        "5",
        "--ledger-digest-every",
        "10",
    )
    policy = asked.policy
    assert (policy.world_size, policy.spares, policy.max_start_overs) == (4, 2, 9)
    assert (policy.stall_floor, policy.stall_factor, policy.forming_limit) == (3.0, 7.0, 5.0)
    assert (policy.idle_timeout, policy.busy_timeout, policy.unresponsive_timeout) == (60.0, 9.0, 2.0)
    assert (asked.plan.grace, asked.plan.ledger_digest_every) == (11.0, 10)
    assert request().policy.max_start_overs == 3


def test_logs() -> None:
    flags = "--tee 3 -r 0:1 --log-dir /l --rdzv-id j --local-ranks-filter 0,2"
    logs = request(*flags.split()).plan.logs
    assert (logs.tee, logs.redirects, logs.only) == (Std.ALL, {0: Std.OUT}, frozenset({0, 2}))
    assert logs.folder == Path("/l/j/attempt_0")
    assert request().plan.logs.folder == Path("/runs/r1/logs/r1/attempt_0")
    assert request().plan.logs.inherits


def test_signals() -> None:
    assert request("--signals-to-handle", "SIGUSR1").signals == (signal.SIGUSR1,)
    assert set(request().signals) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}


def test_flags_without_effect_are_mentioned_only_when_given() -> None:
    assert request().remarks == ()
    asked = request("--rdzv-backend", "c10d", "--monitor-interval", "5", "--standalone")
    assert [remark.split()[0] for remark in asked.remarks] == ["--rdzv-backend", "--monitor-interval"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--nnodes 2", "many hosts need --store"),
        ("--nnodes 1:4", "--nnodes 1:4: many hosts need --store"),
        ("--nnodes 4:1 --coordinator 10.0.0.1:29400", "--nnodes 4:1"),
        ("--nnodes 2 --node-rank 2 --coordinator 10.0.0.1:29400", "--node-rank 2"),
        ("--nnodes 2 --coordinator 10.0.0.1:29400 --local-addr 0.0.0.0", "--local-addr 0.0.0.0.*on all networks"),
        ("--nproc-per-node xpu", "give the number"),
        ("--nproc-per-node many", "--nproc-per-node"),
        ("--nproc-per-node 0", "--nproc-per-node"),
        ("--spares -1", "--spares"),
        ("--max-restarts -1", "--max-restarts"),
        ("--step-timeout-min 0", "--step-timeout-min"),
        ("--busy-timeout 1", "--busy-timeout"),
        ("--regroup-timeout nan", "--regroup-timeout"),
        ("--tee 9", "--tee"),
        ("--local-ranks-filter a", "--local-ranks-filter"),
        ("--signals-to-handle SIGNOTHING", "SIGNOTHING"),
        ("--master-addr 10.0.0.1", "--master-addr"),
        ("--numa-binding node", "numactl"),
        ("--logs-specs x", "--logs-specs"),
        ("--event-log-handler console", "--event-log-handler"),
        ("--virtual-local-rank", "--virtual-local-rank"),
        ("--duplicate-stdout-filters a,b", "--duplicate-stdout-filters"),
        ("--print-completion bash", "--print-completion"),
        ("--no-python --module", "--no-python"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(flags: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        request(*flags.split())


def test_a_host_of_many_is_placed_by_flags_and_environment() -> None:
    told = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "3", "PET_NODE_RANK": "1", "SLURMD_NODENAME": "n1"}
    asked = request("--nnodes", "1:2", "--coordinator", "10.0.0.1:29400", "--local-addr", "10.0.0.2", environment=told)
    assert (asked.policy.world_size, asked.policy.hosts, asked.plan.host) == (3, 1, "n1")
    assert (asked.placement.place.value, asked.placement.spare_hosts) == (None, 1)
    alone = request(environment={"PET_NPROC_PER_NODE": "2", "SLURM_NNODES": "9", "SLURMD_NODENAME": "n1"})
    assert (alone.policy.world_size, alone.policy.hosts, alone.plan.host) == (2, 1, "")
    with pytest.raises(SettingsError, match="PET_NNODES 2: many hosts need --store"):
        request(environment=told)


def test_a_host_that_may_be_spare_keeps_a_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    many = ("--spares", "0", "--coordinator", "10.0.0.1:29400", "--local-addr", "10.0.0.2")
    assert not request(*many).plan.fork_server_command
    assert request(*many, "--nnodes", "1:2").plan.fork_server_command
    assert request(*many, "--spare-host").plan.fork_server_command


def test_a_missing_script_is_a_usage_error() -> None:
    args = our_parser().parse_args(["nowhere.py"])
    with pytest.raises(SettingsError, match=r"nowhere\.py: no such file"):
        read_request(args, {}, Path("/r"), live=False)


def test_detection() -> None:
    asked = request("--on-straggler", "move", "--device-metrics", "http://localhost:9400/metrics")
    assert (asked.responses, asked.plan.device_metrics) == ({"straggler": "move"}, "http://localhost:9400/metrics")
    assert (request().responses, request().detectors, request().plan.device_metrics) == ({}, (), "")
    with pytest.raises(SettingsError, match="--device-metrics"):
        request("--device-metrics", "/etc/passwd")
    with pytest.raises(SettingsError, match="--on-straggler move"):
        request("--on-straggler", "move", "--coordinator", "localhost:1")


def test_detectors_and_responses_are_asked_for_by_name() -> None:
    asked = request("--detectors", "device, mine,device", "--on-evidence", "device=move,mine=page")
    assert asked.detectors == ("device", "mine") and asked.responses == {"device": "move", "mine": "page"}
    assert request("--on-straggler", "move", "--on-evidence", "straggler=note").responses == {"straggler": "note"}
    for wrong in ("move", "=move", "device="):
        with pytest.raises(SettingsError, match=f"--on-evidence {wrong}: give KIND=RESPONSE"):
            request("--on-evidence", wrong)
    with pytest.raises(SettingsError, match="--on-evidence device=move: a host of many"):
        request("--on-evidence", "device=move", "--coordinator", "localhost:1")


def test_those_that_flags_name_are_loaded_and_no_others() -> None:
    both = load_observers(request("--on-straggler", "move"))
    assert [type(one).__name__ for one in both.detectors] == ["StragglerDetector", "DeviceHealth"]
    assert [type(one).__name__ for one in both.responses.values()] == ["Move"]
    one = load_observers(request("--detectors", "device"))
    assert [type(one).__name__ for one in one.detectors] == ["DeviceHealth"]
    with pytest.raises(SettingsError, match="--detectors mine: no installed package has a detector of that name"):
        load_observers(request("--detectors", "device,mine"))
    with pytest.raises(SettingsError, match="--on-evidence device=page: no installed package has a response of that"):
        load_observers(request("--on-evidence", "device=page"))
