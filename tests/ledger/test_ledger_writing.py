from pathlib import Path

import msgspec
from tests.ledger.made_up import committed

from understudy.ledger.records import StepRecord
from understudy.ledger.writing import JsonLines


def test_a_record_is_on_file_as_soon_as_it_was_appended(tmp_path: Path) -> None:
    file = JsonLines(tmp_path / "ledger" / "steps-m-0.jsonl")
    file.append(committed(0, 0))
    line, rest = (tmp_path / "ledger" / "steps-m-0.jsonl").read_bytes().split(b"\n")
    assert msgspec.json.decode(line, type=StepRecord) == committed(0, 0)
    assert rest == b""
    file.close()
    file.close()


def test_a_file_that_is_opened_again_is_continued(tmp_path: Path) -> None:
    for step in range(3):
        with JsonLines(tmp_path / "steps-m-0.jsonl") as file:
            file.append(committed(step, 0))
    lines = (tmp_path / "steps-m-0.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=StepRecord).step for line in lines] == [0, 1, 2]
