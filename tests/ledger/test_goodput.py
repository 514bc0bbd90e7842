"""How an account adds up, and what it says."""

from pathlib import Path

import pytest

from understudy.ledger import goodput
from understudy.ledger.goodput import Goodput
from understudy.ledger.writing import gap_line, line_of

DAY = Goodput(
    productive=86_000.0,
    setup=60.0,
    recovering={"rank_lost": 200.0, "host_lost": 100.0},
    repeated=30.0,
    degraded=10.0,
    steps=172_000,
)


def test_the_parts_are_the_whole() -> None:
    assert DAY.total == 86_400.0
    assert DAY.ratio == pytest.approx(86_000 / 86_400)
    assert sum(DAY.losses().values()) == pytest.approx(400.0)


def test_it_says_what_cost_most_first() -> None:
    assert DAY.sentence() == (
        "goodput 99.5 % of 24:00:00 h; recovering (rank lost) 0.2 %, recovering (host lost) 0.1 %, setup 0.1 %, "
        "repeated 0.0 %, degraded 0.0 %"
    )
    assert Goodput(productive=90.0).sentence() == "goodput 100 % of 1:30 min"
    assert Goodput().sentence() == "goodput: nothing has been trained yet"


def test_the_newest_line_that_can_be_read_counts(tmp_path: Path) -> None:
    assert goodput.read(tmp_path) is None
    (tmp_path / "ledger").mkdir()
    file = tmp_path / "ledger" / "goodput.jsonl"
    file.write_bytes(line_of(Goodput(productive=1.0)) + line_of(DAY) + line_of(DAY)[:20])
    assert goodput.read(tmp_path) == DAY
    file.write_bytes(gap_line("disk full")[:30])
    assert goodput.read(tmp_path) is None
