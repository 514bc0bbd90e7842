"""`pip install 'understudy[coordinator]'` is enough for a coordinator, and brings no torch.

The tests run where everything is installed. So the processes that they start get a `sitecustomize` that refuses every
package which that command would not have installed.
"""

import json
import os
import subprocess
import sys
import tomllib
import urllib.request
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.house.sources import ROOT

from understudy_testkit.faults.coordinators import running

pytestmark = pytest.mark.timeout(240)
_REFUSE = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {name!r}, which is not installed here", name=name)

sys.meta_path.insert(0, Refusing())
"""


def brought_by(extra: str) -> set[str]:
    """The packages that pip would install for this extra of the product, as its pyproject.toml has it now."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pending = [*project["dependencies"], f"understudy[{extra}]"]
    found: set[str] = set()
    while pending:
        wanted = Requirement(pending.pop())
        name = canonicalize_name(wanted.name)
        if name == "understudy":
            pending += [line for one in wanted.extras for line in project["optional-dependencies"][one]]
        elif name not in found and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            found.add(name)
            pending += requires(name) or ()
    return found


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes started from here on see what the extra [coordinator] brings, and nothing else."""
    there = brought_by("coordinator")
    refused = {"understudy_testkit"} | {
        module
        for module, packages in packages_distributions().items()
        if module != "understudy" and not there & {canonicalize_name(package) for package in packages}
    }
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "sitecustomize.py").write_text(f"REFUSED = {sorted(refused)}\n{_REFUSE}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "small"), os.environ.get("PYTHONPATH", "")]))


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200)


def test_the_extra_brings_no_torch() -> None:
    there = brought_by("coordinator")
    assert there >= {"msgspec", "rich", "grpcio", "aetcd", "cryptography", "fastapi", "uvicorn", "prometheus-client"}
    assert not there & {"torch", "numpy", "xxhash"}
    assert brought_by("training") >= {"torch", "numpy", "xxhash"}


@pytest.mark.usefixtures("small")
def test_a_coordinator_becomes_ready_and_answers_its_health_port(tmp_path: Path) -> None:
    with running(tmp_path, "c", "a token of the test", "--health", "127.0.0.1:0") as coordinator:
        port = int(coordinator.find(r"for probes on port (\d+)"))
        coordinator.find(r"(leading), term 1")
        assert asked(port, "/health") == {"healthy": True}
        assert asked(port, "/ready") == {"ready": True}
        assert coordinator.status("/status")["leading"] is True  # the API's packages are there, too


@pytest.mark.usefixtures("small")
def test_everything_that_only_some_coordinators_load_is_there() -> None:
    loaded = run("import aetcd.rpc, cryptography.x509, grpc.aio, understudy.api.setup, understudy.coordinator.etcd")
    assert loaded.returncode == 0, loaded.stderr


@pytest.mark.usefixtures("small")
def test_a_training_script_is_told_what_to_install() -> None:
    told = run("import understudy; understudy.join()")
    last = told.stderr.strip().splitlines()[-1]
    assert "UsageError: training needs " in last and last.endswith(": pip install 'understudy[training]'")


def asked(port: int, page: str) -> object:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=10.0) as answer:
        return json.load(answer)
