"""The report is made from kept results alone, and says what is bad as well as what is good."""

from pathlib import Path

from tests.benchmark.made_up import campaign

from understudy_testkit.benchmark import results
from understudy_testkit.benchmark.report import summary_lines, write_report


def test_the_report_has_tables_pictures_settings_and_failures(tmp_path: Path) -> None:
    results.save(tmp_path / "made-up.json", campaign())
    (tmp_path / "made-up-remarks.md").write_text("The machine was slow on Tuesday.\n")
    written = write_report(results.load(tmp_path / "made-up.json"), tmp_path)
    assert sorted(path.name for path in written) == [
        "made-up-recovery.png",
        "made-up-steps.png",
        "made-up-time.png",
        "made-up.md",
    ]
    assert all(path.stat().st_size > 1000 for path in written)
    text = (tmp_path / "made-up.md").read_text()
    assert "| kill, restart | 2 |" in text and "16.0" in text, "sixteen times longer than understudy"
    assert "1 of 2 never" in text
    assert "a sad story" in text and "torchft was left out: it is not installed" in text
    assert "`--flag`: a reason" in text and "1.000 " in text
    assert "| wall clock | at most 1.10 x bare | 1.08 (1.08 to 1.08) x bare | yes |" in text
    assert "slow on Tuesday" in text
    assert "What a desk benchmark cannot show" in text


def test_the_terminal_gets_one_line_per_arm() -> None:
    lines = summary_lines(campaign())
    assert [line.split()[0] for line in lines[1:]] == ["bare", "restart", "understudy"]
    assert "1.08 x bare" in lines[3] and "identical" in lines[3]
    assert "12 steps lost" in lines[2] and "1 RUNS FAILED" in lines[2]
