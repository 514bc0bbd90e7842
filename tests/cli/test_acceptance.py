"""How the acceptance judges, what it prints and what it packs, from values and stand-ins: no process, no device."""

import contextlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from understudy.cli.examination.accelerators import (
    acceptance,
    archive,
    box,
    carrying_out,
    nvidia_smi,
    one_device,
    two_processes,
)
from understudy.cli.examination.accelerators.bench import Workbench
from understudy.cli.examination.accelerators.brought import trials_of
from understudy.cli.examination.accelerators.contract import (
    Disproved,
    Needs,
    NotShown,
    Part,
    Result,
    Shown,
    Trial,
    Verdict,
)
from understudy.cli.examination.accelerators.teeth import Case, Known, damaged, judge_held
from understudy.cli.examination.accelerators.two_processes import growth_per_round, what_grows
from understudy.cli.main import main
from understudy.errors import SettingsError


def bench(folder: Path, emulated: bool = False, devices: int = 2, **environment: str) -> Workbench:
    return Workbench(
        device="queued" if emulated else "cuda",
        family="queued" if emulated else "nccl",
        emulated=emulated,
        quick=True,
        environment=environment,
        top=folder,
        devices=devices,
    )


def carried_out(on: Workbench, *trials: Trial) -> list[Result]:
    part = Part(letter="X", title="made up", trials=lambda _: trials)
    return list(carrying_out.results_of(part, on))


def raising(error: Exception) -> Any:
    def carry_out(_bench: Workbench) -> Shown:
        raise error

    return carry_out


# -- trials -----------------------------------------------------------------------------------------------------------


def test_each_end_of_a_trial_has_its_verdict_and_none_ends_the_others(tmp_path: Path) -> None:
    results = carried_out(
        bench(tmp_path),
        Trial(name="well", carry_out=lambda _: Shown("it is so", {"ms": 3})),
        Trial(name="cannot", carry_out=raising(NotShown("no tool", "install it"))),
        Trial(name="wrong", carry_out=raising(Disproved("it is not so", "stop", seen=4))),
        Trial(name="breaks", carry_out=raising(RuntimeError("CUDA error"))),
    )
    assert [result.verdict for result in results] == [
        *(Verdict.SHOWN, Verdict.NOT_SHOWN, Verdict.FAILED, Verdict.FAILED),
    ]
    assert results[0].figures == {"ms": 3} and results[2].figures == {"seen": 4}
    assert results[1].advice == "install it" and results[3].sentence == "RuntimeError: CUDA error"
    assert str(carrying_out.finding(results[0])) == "ok    X well: it is so"
    assert str(carrying_out.finding(results[1])) == "note  X cannot: not shown: no tool\n      install it"
    assert str(carrying_out.finding(results[2])) == "BAD   X wrong: it is not so\n      stop"
    assert not carrying_out.all_shown(results) and carrying_out.all_shown(results[:1])
    line = carrying_out.summary(results, emulated=False)
    assert line == "accelerators: 1 of 4 shown (X: well); 1 not shown (X: cannot); 2 failed (X: wrong, breaks)"


def test_an_interrupt_ends_all_trials_even_where_cleaning_up_fails_after_it(tmp_path: Path) -> None:
    def carry_out(_bench: Workbench) -> Shown:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("rank 1 (process 7) does not end")

    with pytest.raises(KeyboardInterrupt):
        carried_out(bench(tmp_path), Trial(name="long", carry_out=carry_out))


def test_what_a_machine_lacks_is_said_and_not_tried(tmp_path: Path) -> None:
    tried = raising(AssertionError("it was tried"))
    driver = Trial(name="driver", carry_out=tried, needs=Needs(driver=True))
    two = Trial(name="two", carry_out=tried, needs=Needs(devices=2))
    assert [each.sentence for each in carried_out(bench(tmp_path, emulated=True), driver)] == ["needs a GPU"]
    assert [each.sentence for each in carried_out(bench(tmp_path, devices=1), two)] == ["needs 2 GPUs; there is 1"]
    assert "says nothing about a GPU" in carrying_out.summary([], emulated=True)


def test_parts_of_the_testkit_are_asked_for_by_its_name(tmp_path: Path) -> None:
    part = Part(letter="E", title="end to end", trials=trials_of("there-is-none"))
    (result,) = carrying_out.results_of(part, bench(tmp_path))
    assert result.verdict is Verdict.NOT_SHOWN and result.advice == "pip install understudy-testkit"


# -- judging ----------------------------------------------------------------------------------------------------------


def test_a_state_that_is_not_damaged_without_a_fence_proves_nothing() -> None:
    known = Known("before", "after")
    assert damaged(known, "other", "an abort").figures["came"] == "other"
    for came in known.before, known.after:
        with pytest.raises(Disproved, match="prove nothing"):
            damaged(known, came, "an abort")


def test_a_fence_that_let_anything_through_is_found() -> None:
    known = Known("before", "after")
    judge_held(Case.GONE, known, "before", True, {})
    for case, held, abandoned in ((Case.GONE, "after", False), (Case.AHEAD, "x", False), (Case.GONE, "x", True)):
        with pytest.raises(Disproved, match="passed its fence"):
            judge_held(case, known, held, abandoned, {})
    with pytest.raises(NotShown, match="were through"):
        judge_held(Case.AHEAD, known, "after", False, {})


def test_what_grows_from_round_to_round() -> None:
    rounds = [
        {"descriptors": 10 + each, "threads": 5, "resident_bytes": 10**8, "free_device_bytes": 10**9 - each * 10**7}
        for each in (7, 8, 9, 10, 11, 12)
    ]
    growth = growth_per_round(rounds)
    assert growth["descriptors"] == 1.0 and growth["threads"] == 0.0
    assert what_grows(growth) == "descriptors +1, free_device_bytes -1e+07"
    assert what_grows(growth_per_round([{**rounds[0], "free_device_bytes": None}] * 3)) == ""


class StandIn:
    """A rank that gives the answers that it was made with."""

    pid = 1

    def __init__(self, **answers: dict[str, Any]) -> None:
        self._answers = answers

    def do(self, verb: str, **_: object) -> dict[str, Any]:
        return self._answers[verb]


def with_answers(monkeypatch: pytest.MonkeyPatch, folder: Path, **answers: dict[str, Any]) -> Workbench:
    on = bench(folder)
    monkeypatch.setattr(Workbench, "rank", lambda *_: StandIn(**answers))
    return on


@pytest.mark.parametrize(
    ("name", "answer", "verdict"),
    [
        ("pinned-word", {"changed_in_time": True, "arrived": 1}, Verdict.SHOWN),
        ("pinned-word", {"changed_in_time": True, "arrived": 0}, Verdict.FAILED),
        ("pinned-word", {"changed_in_time": False, "arrived": 1}, Verdict.NOT_SHOWN),
        ("found-inf", {"Adam": {"skipped": True, "made": True}}, Verdict.SHOWN),
        ("found-inf", {"Adam": {"skipped": False, "made": True}}, Verdict.FAILED),
        ("digest", {"same": True, "sees_a_bit": True, "gb_per_s": 300.0}, Verdict.SHOWN),
        ("digest", {"same": False, "sees_a_bit": True, "gb_per_s": 300.0}, Verdict.FAILED),
        ("copies", {"register_error": 801}, Verdict.FAILED),
    ],
)
def test_answers_of_one_device_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, answer: dict[str, Any], verdict: Verdict
) -> None:
    verb = {"digest": "digests"}.get(name, name.replace("-", "_"))
    on = with_answers(monkeypatch, tmp_path, **{verb: answer})
    trials = [trial for trial in one_device.PART.trials(on) if trial.name == name]
    assert [each.verdict for each in carried_out(on, *trials)] == [verdict]


class StandInPair:
    groups = ("world",)

    def __init__(self, done: list[str]) -> None:
        self.survivor = self.victim = self
        self._done = done

    def do(self, verb: str, **_: object) -> dict[str, Any]:
        self._done.append(verb)
        return {}

    def kill(self) -> None:
        self._done.append("kill")

    def replace(self) -> None:
        self._done.append("replace")

    def connect(self) -> float:
        return 0.1

    def require_sums(self, count: int, words: int) -> None:
        assert count and words


@pytest.mark.parametrize(
    ("until", "says"),
    [
        ("kill", "after the end of the process"),
        ("abandon", "after the survivor's abort"),
        ("replace", "after the connection to a new process"),
        ("never", "does not become free"),
    ],
)
def test_the_stage_at_which_memory_returns_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: str, says: str
) -> None:
    done: list[str] = []

    def used_bytes(_index: int) -> int:
        return 1 << 30 if "ballast" not in done or until in done else 6 << 30

    def until_free(index: int, below: float) -> float | None:
        return 0.5 if used_bytes(index) < below else None

    monkeypatch.setattr(two_processes, "pair", lambda _: contextlib.nullcontext(StandInPair(done)))
    monkeypatch.setattr(nvidia_smi, "used_bytes", used_bytes)
    monkeypatch.setattr(nvidia_smi, "until_free", until_free)
    on = bench(tmp_path)
    (trial,) = [trial for trial in two_processes.PART.trials(on) if trial.name == "memory-returns"]
    (result,) = carried_out(on, trial)
    assert says in result.sentence and (result.verdict is Verdict.FAILED) == (until == "never")


# -- the box ----------------------------------------------------------------------------------------------------------

WELL = "0, NVIDIA H100 80GB HBM3, 570.1, 81559, Disabled, Enabled, Enabled, 0, Default\n"


def box_says(on: Workbench, name: str) -> Result:
    (trial,) = [trial for trial in box.PART.trials(on) if trial.name == name]
    (result,) = carried_out(on, trial)
    return result


@pytest.mark.parametrize(
    ("answer", "processes", "says"),
    [
        (WELL * 2, "", ""),
        (WELL.replace("Disabled", "Enabled"), "", "MIG is on"),
        (WELL.replace("Default", "Exclusive_Process"), "", "the compute mode"),
        (WELL.replace("Disabled, Enabled", "[N/A], Disabled"), "", "persistence mode is off"),
        (WELL.replace(" 0, Def", " 3, Def"), "", "uncorrected ECC errors"),
        (WELL, "4711, 500\n", "processes are on the GPUs already"),
    ],
)
def test_gpus_that_are_set_up_badly_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, processes: str, says: str
) -> None:
    def ask(*arguments: str) -> str:
        return answer if arguments[0].startswith("--query-gpu") else processes

    monkeypatch.setattr(nvidia_smi, "ask", ask)
    result = box_says(bench(tmp_path), "gpus")
    assert result.verdict is (Verdict.FAILED if says else Verdict.SHOWN) and says in result.sentence


def test_a_machine_without_the_tool_cannot_show_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_smi, "ask", lambda *_: "nvidia-smi: not found\n")
    assert box_says(bench(tmp_path), "gpus").verdict is Verdict.NOT_SHOWN
    assert box_says(bench(tmp_path), "ways").verdict is Verdict.NOT_SHOWN


def test_what_join_would_refuse_is_refused(tmp_path: Path) -> None:
    on = bench(tmp_path)
    on.seen = {"present": True, "count": 2, "torch": "2.15.0", "objections": ["MPS is on"], "variables": {}}
    assert box_says(on, "objections").sentence == "MPS is on"
    assert box_says(on, "present").verdict is Verdict.SHOWN
    on.seen = {**on.seen, "variables": {"NCCL_NVLS_ENABLE": "0"}}
    on.environment = {"NCCL_NVLS_ENABLE": "1", "NCCL_DEBUG": "WARN"}
    result = box_says(on, "settings")
    assert result.verdict is Verdict.FAILED and result.advice == "unset NCCL_NVLS_ENABLE"


def test_what_the_driver_told_is_read() -> None:
    messages = "[1.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n[2.0] usb 1-1: new\n"
    assert box.xids_in(messages) == [("PCI:0000:3b:00", 79)]


def test_what_nvidia_smi_prints_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    (gpu,) = nvidia_smi.parse("header\n" + WELL.replace("0, Default", "[N/A], Default"))
    assert gpu.name == "NVIDIA H100 80GB HBM3" and gpu.uncorrected == "" and gpu.mib == "81559"
    topology = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\t X \tNV18\tPIX\t0-31\nGPU1\tNV18\t X \tSYS\t0-31\n"
    assert nvidia_smi.links(topology) == ["NV18"]
    monkeypatch.setattr(nvidia_smi, "ask", lambda *_: "12, 300\n12, 200\n13, [N/A]\n")
    assert nvidia_smi.processes() == {12: 500 << 20}
    assert nvidia_smi.index_of(1, {"CUDA_VISIBLE_DEVICES": "4,6"}) == 6 and nvidia_smi.index_of(1, {}) == 1


# -- the archive ------------------------------------------------------------------------------------------------------


def test_the_archive_has_text_and_named_variables_only(tmp_path: Path) -> None:
    on = bench(tmp_path / "top", NCCL_DEBUG="INFO", AWS_SECRET_ACCESS_KEY="s3cret", UNDERSTUDY_JOB_TOKEN="t0ken")
    (on.folder() / "said.txt").write_text("NCCL INFO\n")
    (on.folder() / "state.pt").write_bytes(b"weights")
    (on.folder() / "link.txt").symlink_to("/etc/hostname")
    (on.folder() / "long.txt").write_bytes(b"x" * (5 << 20))
    result = Result(part="A", trial="present", verdict=Verdict.SHOWN, sentence="two", figures={"count": 2})
    target = tmp_path / "back.tar.gz"
    archive.write(target, on, [result], 0.0)
    with tarfile.open(target) as packed:
        names = {Path(name).name for name in packed.getnames()}
        contents = {name: packed.extractfile(name) for name in packed.getnames()}
        text = b"".join(content.read() for content in contents.values() if content is not None)
    assert names == {"results.json", "said.txt", "long.txt"}
    assert b"s3cret" not in text and b"t0ken" not in text and b"AWS_SECRET" not in text
    assert b"bytes are left out" in text and target.stat().st_mode & 0o777 == 0o600
    report = archive.report(on, [result], 0.0)
    assert report["environment"] == {"NCCL_DEBUG": "INFO"}
    assert json.loads(json.dumps(report))["results"][0]["verdict"] == "shown"


def test_no_variable_that_is_told_could_be_a_secret() -> None:
    assert not [name for name in archive.NAMES if any(word in name for word in ("KEY", "TOKEN", "SECRET", "PASS"))]
    assert len(set(archive.NAMES)) == len(archive.NAMES)


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--accelerators-only", "A"], "--accelerators-only: is for --accelerators"),
        (["--archive", "x.tar.gz"], "--archive: is for --accelerators"),
        (["--accelerators", "--accelerators-only", "A,Q"], "there are the parts A, B, C, D, E, F"),
        (["--accelerators", "--device", "abacus"], "pip install understudy-testkit"),
        (["--accelerators", "--devices", "-1"], "must be 0 or more"),
        (["--accelerators", "--archive", "/nowhere/x.tar.gz"], "no file can be written there"),
    ],
)
def test_flags_that_cannot_be_used_are_refused_before_anything_is_tried(
    flags: Sequence[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *flags]) == 2
    captured = capsys.readouterr()
    assert says in captured.err and not captured.out


def test_an_archive_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "back.tar.gz").write_text("")
    with pytest.raises(SettingsError, match="is there already"):
        archive.require_place(tmp_path / "back.tar.gz")


def test_the_doctor_and_the_acceptance_load_no_torch() -> None:
    modules = f"{acceptance.__name__}, understudy.cli.doctor"
    check = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
