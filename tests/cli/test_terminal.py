"""What a tired person reads."""

import io
from pathlib import Path

import pytest

from understudy.agent.logs import Std
from understudy.cli.terminal import LiveTerminal, Terminal, View, end_lines, recovery_lines
from understudy.ledger.records import DecisionRecord, RecoveryRecord, TransferRecord
from understudy.protocol.commands import Outcome, StopJob
from understudy.protocol.reasons import Code, because
from understudy.protocol.sentences import sentence

RECOVERY = RecoveryRecord(
    at=11.0,
    opened_at=10.1,
    first_generation=2,
    generation=2,
    step=120,
    reasons=("rank 1 (member m-1) was lost: SIGKILL",),
    verdict="retry: rank 0 had not arrived",
    swaps=((1, "m-1", "m-4"),),
    phases={
        "detect": 0.1,
        "stop": 0.02,
        "rehearse": 0.5,
        "regroup": 0.2,
        "transfer": 0.15,
        "resume": 0.36,
        "total": 1.0,
    },
    transfers=(TransferRecord(receiver=1, given={0: 52_000_000}, seconds=0.15, checked=4),),
)
VIEW = View(stage="training", generation=1, step=7, ranks_up=2, world_size=2, spares_warm=0, spares_starting=1)


def test_a_recovery_block() -> None:
    assert recovery_lines(RECOVERY) == [
        "--- recovered in 1000 ms: resumed at step 120, generation 2",
        "    rank 1 (member m-1) was lost: SIGKILL",
        "    verdict  retry: rank 0 had not arrived",
        "    rank 1   m-1 -> m-4",
        "    ms       detect 100 | stop 20 | rehearse 500 | regroup 200 | transfer 150 | resume 360; 52.0 MB received",
    ]


def test_the_block_at_the_end_says_what_to_do() -> None:
    cause = because(Code.RAISED, text="ValueError")
    reason = because(Code.FAILED_TWICE, rank=0, step=3, cause=cause)
    text = "\n".join(end_lines(StopJob(outcome=Outcome.FAILED, reason=reason, exit_code=7), Path("/runs/a b")))
    assert "exit code 7" in text and sentence(reason) in text and "correct it" in text
    assert "understudy explain '/runs/a b'" in text


def test_every_strategy_has_a_line_of_its_own() -> None:
    lost = because(Code.RANK_LOST, rank=1, member="m-1", cause=because(Code.SIGNALLED, text="SIGKILL"))
    no_swap = because(Code.NO_STRATEGY, strategy="swap", why=because(Code.NO_SPARES_OFFERED))
    no_degrade = because(Code.NO_STRATEGY, strategy="degrade", why=because(Code.NO_WHOLE_REPLICA))
    reason = because(Code.CANNOT_GO_ON, cause=lost, tried=(no_swap, no_degrade))
    assert end_lines(StopJob(outcome=Outcome.FAILED, reason=reason, exit_code=137), Path("/runs/a"))[1:5] == [
        "    why      rank 1 (member m-1) was lost: SIGKILL",
        "             no swap: the job was started with --spares 0",
        "             no degrade: no whole replica would be left",
        "    to do    start with --spares 1 or more, so that a lost rank can be replaced",
    ]


def test_plain_lines_go_to_stderr_behind_a_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(Path("/r"))
    terminal.begin(("python", "train.py", "a b"), 2, 1, ["--rdzv-conf has no effect on one host"])
    terminal.append(RECOVERY)
    terminal.append(DecisionRecord(at=1.0, generation=2, kind="swap", reason="rank 1 was lost"))
    terminal.append(DecisionRecord(at=1.0, generation=2, kind="verdict", reason="not shown"))
    terminal._show_members(VIEW)
    terminal._show_members(VIEW)
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert all(line.startswith("understudy: ") for line in lines)
    assert lines[0] == "understudy: starting 2 ranks, 1 spare: python train.py 'a b'"
    assert "not shown" not in shown.err
    assert shown.err.count("ranks 2/2 up, spares: 0 warm, 1 warming up") == 1


def test_the_live_line_makes_room_for_output(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.TextIOWrapper(io.BytesIO(), write_through=True)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("sys.stdout", screen)
    terminal = LiveTerminal(Path("/r"))
    terminal._show_members(VIEW)
    terminal.output(Std.OUT, b"loss 3.2\n")
    terminal.close()
    assert isinstance(screen.buffer, io.BytesIO)
    text = screen.buffer.getvalue().decode()
    erase = "\r\x1b[2K"
    first, second, third = text.split(erase)
    assert first.startswith("step 7") and "ranks 2/2" in first
    assert second.startswith("loss 3.2\nstep 7"), "the line is drawn again below the output"
    assert third == ""
