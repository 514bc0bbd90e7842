"""The command line as a whole."""

import subprocess
import sys
from pathlib import Path

import pytest

from understudy.cli.main import main


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out.startswith("understudy ")


def test_help_lists_the_commands_and_each_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, word in ((["--help"], "verify"), (["run", "--help"], "--spares")):
        with pytest.raises(SystemExit):
            main(arguments)
        assert word in capsys.readouterr().out


def test_a_usage_error_is_code_2_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    assert main(["run", "--nnodes", "3", "--run-dir", str(run_dir), __file__]) == 2
    assert "understudy: error: --nnodes 3" in capsys.readouterr().err
    assert not run_dir.exists()


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert main(["run", "--run-dir", str(tmp_path), __file__]) == 2
    assert "there is a run in this folder already" in capsys.readouterr().err


def test_the_launcher_never_loads_the_engine() -> None:
    code = "import sys, understudy.cli.run; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
