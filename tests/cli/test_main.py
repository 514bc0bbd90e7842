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


def test_without_torch_nothing_is_started_and_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("understudy.cli.run.find_spec", lambda _: None)
    assert main(["run", "--run-dir", str(tmp_path / "run"), __file__]) == 2
    assert "pip install 'understudy[training]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# -- commands of other packages ----------------------------------------------------------------------------------------


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str, command: str, module: str) -> None:
    """As much of a package as pip would leave for Python to find its command."""
    metadata = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[understudy.commands]\n{command} = {module}\n")
    monkeypatch.syspath_prepend(str(folder))


def test_a_command_of_the_testkit_names_its_package_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("understudy.cli.other_packages.entry_points", lambda **_: ())
    assert main(["bench", "report"]) == 2
    assert capsys.readouterr().err == (
        "understudy: error: `understudy bench` comes with another package: pip install understudy-testkit\n"
    )


def test_a_command_of_the_testkit_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, monkeypatch, "understudy-testkit", "bench", "understudy_testkit.benchmark.command")
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "report"]) == 2  # it looked for results in this folder
    assert "there are no results" in capsys.readouterr().err


def test_a_command_of_another_package_is_listed_loaded_when_it_is_called_and_cannot_replace_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, monkeypatch, "understudy-weather", "weather", "understudy_weather")
    install(tmp_path / "false", monkeypatch, "understudy-false", "verify", "there_is_no_such_module")
    with pytest.raises(SystemExit):
        main(["--help"])  # the module is not there yet
    listed = capsys.readouterr().out
    assert "a command of understudy-weather" in listed and "understudy-false" not in listed
    (tmp_path / "understudy_weather.py").write_text(
        "def add_arguments(parser):\n    parser.add_argument('--at')\n\n\n"
        "def main(args):\n    print('rain at', args.at)\n    return 7\n"
    )
    assert main(["weather", "--at", "sea"]) == 7 and capsys.readouterr().out == "rain at sea\n"
