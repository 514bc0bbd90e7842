"""What a coordinator says, for people and for machines."""

import io
import json

from understudy.cli.log import Log
from understudy.ledger.records import DecisionRecord, RecoveryRecord

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
    log = Log("understudy coordinator", "llama", form, stream=stream, wall=lambda: 1_800_000_000.5)
    log.tell("leading", "leading, term 3", term=3)
    log.run = lambda: "20270115-080000-abcd"
    log.append(SWAP)
    log.append(RECOVERED)
    log.say("two\nlines")
    log.tell("end", "the job failed: no spare", failed=True, exit_code=1)
    return stream.getvalue().splitlines()


def test_people_see_when_and_what() -> None:
    assert said("text") == [
        "2027-01-15T08:00:00.500Z understudy coordinator: leading, term 3",
        "2027-01-15T08:00:00.500Z understudy coordinator: generation 2: swap: rank 1 was lost",
        "2027-01-15T08:00:00.500Z understudy coordinator: recovered in 0.250 s, at step 7",
        "2027-01-15T08:00:00.500Z understudy coordinator: two",
        "lines",
        "2027-01-15T08:00:00.500Z understudy coordinator: the job failed: no spare",
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
    assert {line["job"] for line in lines} == {"llama"} and lines[0]["time"] == "2027-01-15T08:00:00.500Z"
    assert (lines[1]["rank"], lines[1]["member"], lines[2]["seconds"]) == (1, "m-1", {"total": 0.25})
    assert lines[3]["text"] == "two\nlines"
