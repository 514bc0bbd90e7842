"""What coordinators and agents say, for people and for machines."""

import io
import json
from pathlib import Path

from understudy.cli.log import Log
from understudy.cli.logged import LoggedTerminal
from understudy.ledger.records import DecisionRecord, RecoveryRecord
from understudy.protocol.commands import Outcome, StopJob
from understudy.protocol.reasons import Code, because

SWAP = DecisionRecord(at=1.0, generation=2, kind="swap", reason="rank 1 was lost", rank=1, member="m-1")
RECOVERED = RecoveryRecord(
    at=1.0,
    opened_at=0.5,
    first_generation=2,
    generation=2,
    step=7,
    reasons=("rank 1 was lost",),
    verdict="go on",
    swaps=((1, "m-1", "m-2"),),
    phases={"total": 0.25},
)


def said(form: str) -> list[str]:
    stream = io.StringIO()
    log = Log("understudy coordinator", "llama", form, host="boss", stream=stream, wall=lambda: 1_800_000_000.5)
    log.tell("leading", "leading, term 3", term=3)
    log.run = lambda: "20270115-080000-abcd"
    log.append(SWAP)
    log.append(RECOVERED)
    log.say("two\nlines")
    log.tell("end", "the job failed: no spare", exit_code=1)
    return stream.getvalue().splitlines()


def test_people_see_when_and_what() -> None:
    assert said("text") == [
        "2027-01-15T08:00:00.500Z understudy coordinator on boss: leading, term 3",
        "2027-01-15T08:00:00.500Z understudy coordinator on boss: generation 2: swap: rank 1 was lost",
        "2027-01-15T08:00:00.500Z understudy coordinator on boss: recovered in 0.250 s, at step 7",
        "2027-01-15T08:00:00.500Z understudy coordinator on boss: two",
        "lines",
        "2027-01-15T08:00:00.500Z understudy coordinator on boss: the job failed: no spare",
    ]


def test_machines_get_one_document_per_line() -> None:
    lines = [json.loads(line) for line in said("json")]
    assert [(line["level"], line["code"], line["run"]) for line in lines] == [
        ("info", "leading", ""),
        ("warning", "swap", "20270115-080000-abcd"),
        ("info", "recovered", "20270115-080000-abcd"),
        ("info", "note", "20270115-080000-abcd"),
        ("error", "end", "20270115-080000-abcd"),
    ]
    assert {(line["job"], line["host"]) for line in lines} == {("llama", "boss")}
    assert lines[0]["time"] == "2027-01-15T08:00:00.500Z"
    assert (lines[1]["rank"], lines[1]["member"], lines[2]["seconds"]) == (1, "m-1", {"total": 0.25})
    assert lines[3]["text"] == "two\nlines"


def told_by_an_agent(form: str) -> str:
    stream = io.StringIO()
    log = Log("understudy agent", "llama", form, host="a", stream=stream, wall=lambda: 1_800_000_000.5)
    log.run = lambda: "r1"
    terminal = LoggedTerminal(Path("/runs/r1"), log)
    terminal.tell("connected", "connected to the coordinator at boss:1", address="boss:1", term=2)
    terminal.tell("no coordinator", "no coordinator at boss:1: it is gone")
    terminal.append(SWAP)
    terminal.say("the nursery has ended")
    terminal.end(StopJob(outcome=Outcome.FAILED, reason=because(Code.NO_LIVE_TWIN, rank=1), exit_code=1))
    return stream.getvalue()


def test_an_agent_speaks_like_a_coordinator() -> None:
    lines = [json.loads(line) for line in told_by_an_agent("json").splitlines()]
    assert [(line["level"], line["code"]) for line in lines] == [
        ("info", "connected"),
        ("warning", "no coordinator"),
        ("warning", "swap"),
        ("info", "note"),
        ("error", "end"),
    ]
    assert {(line["who"], line["host"], line["run"], line["job"]) for line in lines} == {
        ("understudy agent", "a", "r1", "llama")
    }
    assert (lines[0]["address"], lines[0]["term"], lines[-1]["exit_code"]) == ("boss:1", 2, 1)


def test_people_see_which_host_it_is_and_what_to_do() -> None:
    lines = told_by_an_agent("text").splitlines()
    before = "2027-01-15T08:00:00.500Z understudy agent on a: "
    assert lines[0] == f"{before}connected to the coordinator at boss:1"
    assert lines[-1].startswith(
        f"{before}the job failed: no live rank holds the same shard as rank 1 (it has no twin); give"
    )


def test_a_log_that_nobody_can_take_ends_nothing() -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    Log("understudy agent", "llama", "text", host="a", stream=Full()).say("lost")
