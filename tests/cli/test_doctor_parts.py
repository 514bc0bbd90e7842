"""What the doctor says of packages, clocks and interfaces, from values."""

import importlib.metadata
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from understudy.cli.examination import clocks, route, versions
from understudy.cli.examination.clocks import Reading
from understudy.cli.examination.finding import Finding, amount, rate, roundly_above, span
from understudy.cli.examination.route import GLOO, Route

OVER_ETH0 = Route(local="10.0.0.1", interface="eth0")
HERE = {"python": "3.11.7", "understudy": "0.1.0", "torch": "2.15.0"}


def pretend_installed(monkeypatch: pytest.MonkeyPatch, **found: str) -> None:
    def version(package: str) -> str:
        if package.replace("-", "_") not in found:
            raise importlib.metadata.PackageNotFoundError(package)
        return found[package.replace("-", "_")]

    monkeypatch.setattr("importlib.metadata.version", version)


# -- versions ---------------------------------------------------------------------------------------------------------


def test_the_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for extra in versions.EXTRAS:
        wanted = project["optional-dependencies"][extra.name]
        assert dict(re.split(">=", line) for line in wanted) == dict(extra.packages), extra.name


def test_a_missing_package_is_named_with_its_feature_and_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(
        monkeypatch, understudy="0.1.0", torch="2.15.0+cpu", grpcio="1.70.0", fastapi="0.120", uvicorn="1.0"
    )
    _, torch, hosts, api = versions.packages()
    assert torch == Finding("torch 2.15.0+cpu", good=True, advice=torch.advice)
    assert (
        "without aetcd, cryptography" in hosts.what
        and "many hosts" in hosts.what
        and "understudy[hosts]" in hosts.advice
    )
    assert "without prometheus-client" in api.what and "understudy[api]" in api.advice
    assert not (hosts.wrong or api.wrong)  # one host needs neither


def test_an_old_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, torch="2.16.0a0", grpcio="1.9.5", aetcd="1.0.0", cryptography="42.0.1")
    _, torch, hosts, _ = versions.packages()
    assert torch.good and not hosts.good and not hosts.wrong and "grpcio 1.66" in hosts.advice


def test_without_torch_nothing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch)
    assert [finding.wrong for finding in versions.packages()] == [False, True, False, False]


def test_versions_of_a_run_and_of_another_host_are_compared() -> None:
    assert versions.compared("run", HERE, HERE) == Finding("run has the same python, understudy, torch", good=True)
    other = versions.compared("run", HERE | {"torch": "2.16.0"}, HERE)
    assert other.what == "run has torch 2.16.0 (2.15.0 here)" and not other.good and not other.wrong
    assert not versions.compared("run", {}, HERE).good
    hostile = versions.compared("peer", {"torch": "\x1b[2J" + "9" * 500}, HERE)
    assert "\x1b" not in hostile.what and len(hostile.what) < 100


def test_no_heavy_package_is_loaded() -> None:
    heavy = ("torch", "numpy", "grpc", "aetcd", "fastapi", "uvicorn", "prometheus_client", "cryptography")
    code = (
        "import sys; from understudy.cli.main import main; main(['doctor']); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1] == "[]"


# -- clocks -----------------------------------------------------------------------------------------------------------


def judged(before: Reading, after: Reading, resolution: float = 1e-9) -> list[Finding]:
    return [*clocks.judge(before, after, resolution)]


def test_a_clock_that_goes_on_is_good() -> None:
    (finding,) = judged(Reading(100.0, 100.0), Reading(100.05, 100.05))
    assert finding.good and "1 ns" in finding.what


def test_a_clock_that_stands_still_is_wrong() -> None:
    (finding,) = judged(Reading(100.0, 100.0), Reading(100.0, 100.0))
    assert finding.wrong


def test_a_coarse_clock_and_a_host_that_slept_are_noted() -> None:
    coarse, slept = judged(Reading(100.0, 700.0), Reading(100.05, 700.05), resolution=0.004)
    assert not coarse.good and not slept.good and "suspended for 600 s" in slept.what and not slept.wrong


def test_a_gap_that_grows_is_noted() -> None:
    _, slept = judged(Reading(100.0, 100.0), Reading(100.05, 102.55))
    assert "suspended for 2.5 s just now" in slept.what and "turn suspending off" in slept.advice


def test_an_offset_of_wall_clocks_matters_for_alerts_only() -> None:
    assert clocks.wall_offset(-0.3, 0.001, "peer").what == (
        "the wall clock of peer is 300 ms behind ours (give or take 1 ms)"
    )
    far = clocks.wall_offset(70.0, 0.001, "peer")
    assert not far.good and not far.wrong and "alerts" in far.advice


# -- interfaces -------------------------------------------------------------------------------------------------------


def test_the_kernel_knows_the_interface_of_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        assert route.route_of(connection) == Route(local="127.0.0.1", interface="lo")


@pytest.mark.parametrize(
    ("environment", "by_name", "good", "wrong"),
    [
        ({GLOO: "eth0"}, None, True, False),
        ({GLOO: "eth1, eth0"}, None, True, False),
        ({GLOO: "eth1"}, None, False, False),  # state travels elsewhere
        ({GLOO: "ib0"}, None, False, True),  # gloo ends with an error
        ({}, "10.0.0.1", True, False),
        ({}, "127.0.1.1", False, False),
        ({}, None, False, False),
    ],
)
def test_gloo_should_go_the_way_that_was_measured(
    environment: dict[str, str], by_name: str | None, good: bool, wrong: bool
) -> None:
    finding = route.gloo(OVER_ETH0, environment, ["lo", "eth0", "eth1"], by_name)
    assert (finding.good, finding.wrong) == (good, wrong)
    assert good or "eth0" in finding.advice


# -- words ------------------------------------------------------------------------------------------------------------


def test_numbers_for_a_person() -> None:
    assert [span(value) for value in (25e-6, 0.0125, 1.25, 10.0, 420.4)] == [
        "25 us",
        "12.5 ms",
        "1.2 s",
        "10 s",
        "420 s",
    ]
    assert (rate(12.3e6), rate(2.5e9), amount(4e10)) == ("12.3 MB/s", "2.50 GB/s", "40 GB")
    assert [roundly_above(value) for value in (0.0, 0.0234, 2.0, 207.3)] == [0.0, 0.024, 2.0, 210.0]
