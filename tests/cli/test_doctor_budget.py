"""Limits beside what is expected of them, and the recovery that is foretold."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.ledger.made_up import all_places, committed, swap_decisions, write_run

from understudy.cli.examination.budget import Measured, judge
from understudy.cli.examination.finding import Finding
from understudy.cli.examination.history import RunHistory, gaps_of, history_of
from understudy.cli.main import main
from understudy.ledger.reading import read_run
from understudy.ledger.records import RecoveryRecord, TransferRecord
from understudy.protocol.policy import Policy

SEEN = RunHistory(
    typical_step=2.0,
    slow_step=3.0,
    longest_gap=40.0,
    state_bytes=20_000_000_000,
    speed=1e9,
    detect=0.5,
    stop=1.0,
    preparation=30.0,
    regroup=1.0,
    forming=21.0,
    recoveries=3,
    recovery=25.0,
)
WAY = Measured(bandwidth=2e9, round_trip=0.001)


def limits(**changes: float) -> Policy:
    return replace(Policy(world_size=4), **changes)  # type: ignore[arg-type]


def about(word: str, found: list[Finding]) -> Finding:
    (one,) = (finding for finding in found if word in finding.what)
    return one


def judged(given: Policy, history: RunHistory = SEEN, way: Measured | None = None) -> list[Finding]:
    return [*judge(given, history, way)]


def test_limits_with_room_are_good() -> None:
    found = judged(limits(), way=WAY)
    assert all(finding.good for finding in found)
    assert about("deadline of ranks that wait", found).what.startswith(
        "deadline of ranks that wait for each other (--step-timeout-min, --step-timeout-factor) 20 s: 3 s expected"
    )


@pytest.mark.parametrize(
    ("changes", "word", "advice"),
    [
        ({"forming_limit": 40.0}, "--regroup-timeout 40 s", "--regroup-timeout 42 or more"),
        ({"preparation_limit": 50.0}, "--warmup-timeout 50 s", "--warmup-timeout 60 or more"),
        ({"stall_floor": 1.0, "stall_factor": 2.0}, "deadline of ranks that wait", "--step-timeout-factor 3 or more"),
        ({"stall_floor": 5.0, "stall_factor": 1.0}, "deadline of ranks that wait", "--step-timeout-min 6 or more"),
        ({"host_patience": 0.2}, "--host-timeout 0.2 s", "--host-timeout 0.32 or more"),
    ],
)
def test_an_expectation_above_half_of_a_limit_says_what_to_change(
    changes: dict[str, float], word: str, advice: str
) -> None:
    finding = about(word, judged(limits(**changes), way=WAY))
    assert not finding.good and not finding.wrong and advice in finding.advice


def test_exactly_half_is_good_enough() -> None:
    assert about("--regroup-timeout", judged(limits(forming_limit=42.0))).good


def test_code_between_steps_has_a_limit_of_its_own() -> None:
    found = judged(limits(idle_timeout=60.0))
    assert "--idle-timeout 80 or more" in about("--idle-timeout", found).advice


def test_a_limit_in_which_no_recovery_can_end_is_wrong() -> None:
    """Hazard 17: the state is larger than the limit allows for."""
    large = replace(SEEN, state_bytes=1_400_000_000_000)
    finding = about("--regroup-timeout", judged(limits(), large, WAY))
    assert finding.wrong and "1400 GB at 2.00 GB/s, as measured to the peer" in finding.what
    assert "--regroup-timeout 1500 or more" in finding.advice  # 1 s to regroup, 700 s to transfer, and as much again


def test_the_wrong_interface_shows_in_the_speed() -> None:
    """Hazard 18: 948 s instead of 20 s."""
    slow = replace(SEEN, speed=21e6)
    assert "GLOO_SOCKET_IFNAME" in about("times slower", judged(limits(), slow, WAY)).advice
    assert not any("times slower" in finding.what for finding in judged(limits(), SEEN, WAY))
    small = replace(slow, state_bytes=1_000_000)
    assert not any("times slower" in finding.what for finding in judged(limits(), small, WAY))


def test_the_past_foretells_a_recovery() -> None:
    found = judged(limits())
    assert about("a recovery took 25 s (the median of 3", found).good
    assert not any("should take" in finding.what for finding in found)


def test_without_a_past_it_is_reckoned_and_said_how() -> None:
    found = judged(limits(), replace(SEEN, recoveries=0, recovery=None))
    what = about("should take about", found).what
    assert "22.5 s: 500 ms to notice (as in this run), 20 s to transfer, 2 s for a step again" in what


def test_a_spare_on_the_peers_host_is_reckoned_with_its_way() -> None:
    found = judged(limits(), way=WAY)
    assert about("a recovery took", found).good
    assert "14.8 s: 2.8 s to notice (a host that falls silent" in about("should take about", found).what


def test_what_is_not_known_is_said_in_one_line() -> None:
    found = judged(limits(), RunHistory())
    unknown = about("nothing to compare with", found).what
    for flag in ("--step-timeout-min", "--idle-timeout", "--warmup-timeout", "--regroup-timeout", "--host-timeout"):
        assert flag in unknown
    assert "--state-gb" in about("how large the state", found).advice
    assert "--state-gb and --peer" in about("cannot be foretold", found).advice
    assert not any(finding.wrong for finding in found)


# -- from a ledger ----------------------------------------------------------------------------------------------------


def test_the_ledger_tells_steps_bytes_and_phases(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", all_places(steps=6), swap_decisions()))
    history = history_of(run)
    assert (history.typical_step, history.slow_step, history.longest_gap) == (1.0, 1.0, 1.0)
    assert history.state_bytes == 12_345_678 and history.speed is None  # it was read from memory
    assert (history.detect, history.stop, history.preparation) == (0.001, 0.02, 0.1)
    assert (history.regroup, history.forming) == (0.03, 0.019)
    assert (history.recoveries, history.recovery) == (1, 0.25)


def test_a_gap_over_a_swap_is_no_step(tmp_path: Path) -> None:
    """m-2 takes rank 1 over after a minute; its first steps are long, as those of m-1 were."""
    mine = [committed(step, 1, "m-1") for step in range(5)]
    inherited = committed(4, 1, "m-2", generation=2, at=160.0, inherited=True)
    later = [committed(step, 1, "m-2", generation=2, at=160.0 + 2 * step) for step in range(5, 9)]
    run = read_run(write_run(tmp_path / "run", [*mine, inherited, *later]))
    assert [*gaps_of(run, 1)] == [1.0, 1.0, 2.0, 2.0]
    assert [*gaps_of(run, 0)] == []


def test_a_planned_move_tells_the_speed_but_is_no_recovery(tmp_path: Path) -> None:
    (recovery,) = (record for record in swap_decisions() if isinstance(record, RecoveryRecord))
    sent = TransferRecord(receiver=1, given={0: 3_000_000, 2: 1_000_000}, seconds=0.5, checked=9)
    move = msgspec.structs.replace(recovery, planned=True, transfers=(sent,))
    history = history_of(read_run(write_run(tmp_path / "run", all_places(), [move])))
    assert (history.state_bytes, history.speed) == (4_000_000, 8e6)
    assert (history.recoveries, history.recovery, history.detect, history.stop) == (0, None, None, None)


def test_the_command_tells_the_limits_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write_run(tmp_path / "run", all_places(steps=6), swap_decisions()))
    assert main(["doctor", folder]) == 0
    output = capsys.readouterr().out
    assert "ok    a recovery took 250 ms (the only one in this run)" in output and f"-- run {folder}" in output
    assert main(["doctor", folder, "--warmup-timeout", "0.05"]) == 1
    assert "BAD   --warmup-timeout" in capsys.readouterr().out


def test_other_versions_than_those_of_the_run_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "run", all_places())
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.16.0")
    assert main(["doctor", str(folder)]) == 0
    assert f"note  {folder} has torch 2.15.0 (2.16.0 here)" in capsys.readouterr().out


def test_the_size_of_the_state_can_be_given_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--state-gb", "40"]) == 0
    assert "the state of a rank is 40 GB" in capsys.readouterr().out
