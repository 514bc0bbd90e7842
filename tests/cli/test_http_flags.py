"""The flags of the API: what is wrong is said before anything is started."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from understudy.cli import http_flags
from understudy.cli.main import main
from understudy.errors import SettingsError


def given(**flags: object) -> argparse.Namespace:
    return argparse.Namespace(**{"http": None, "http_tokens": None, "alert_rules": None, **flags})


def test_without_http_there_is_no_api() -> None:
    assert http_flags.read_api_request(given(), None) is None
    assert http_flags.make_event_stream(None) is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"http_tokens": Path("x")}, "--http-tokens has no meaning without --http"),
        ({"alert_rules": Path("x")}, "--alert-rules has no meaning without --http"),
        ({"http": "0.0.0.0:1"}, "--certs"),
        ({"http": "somewhere"}, "HOST:PORT"),
        ({"http": "127.0.0.1:0", "http_tokens": Path("/no/such")}, "--http-tokens /no/such: No such file"),
        ({"http": "127.0.0.1:0", "alert_rules": Path("/no/such")}, "--alert-rules /no/such: No such file"),
    ],
)
def test_what_is_wrong(flags: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match="--") as wrong:
        http_flags.read_api_request(given(**flags), None)
    assert said in str(wrong.value)


@pytest.mark.parametrize("flag", ["--http", "--health"])
def test_on_many_hosts_the_coordinator_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    arguments = ["--coordinator", "127.0.0.1:1", flag, "127.0.0.1:0", "--run-dir", str(tmp_path / "run")]
    assert main(["run", *arguments, __file__]) == 2
    assert f"understudy coordinator {flag}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_address_for_probes_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--health", "somewhere", "--run-dir", str(tmp_path / "run"), __file__]) == 2
    assert "--health somewhere: give it as HOST:PORT" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_job_without_http_loads_none_of_its_packages() -> None:
    code = (
        "import sys, understudy.cli.run, understudy.cli.coordinator, understudy.cli.status\n"
        "print([m for m in ('fastapi', 'uvicorn', 'pydantic', 'prometheus_client', 'torch') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_api_never_loads_the_engine() -> None:
    code = "import sys, understudy.api.setup; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
