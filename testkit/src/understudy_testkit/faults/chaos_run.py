"""Carries a chaos schedule out on a real job: halts it before every act, changes the spares over HTTP, lets it go on.

The training script waits at a gate before each step. So an act begins when everything that is expected of the world is
true: the ranks that should be there are, all hold the same step, and as many spares as were asked for are warm. That is
how a schedule leads to the same decisions however fast the machine is. Used by the claim.
"""

import contextlib
import http.client
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from understudy.ledger.records import DecisionRecord
from understudy.protocol.commands import DecisionKind
from understudy.protocol.stages import Stage
from understudy_testkit.faults.assertions import NotProven, RunOutcome, Setup, fault_flags, launch_command, outcome_in
from understudy_testkit.faults.catalogue import Kind
from understudy_testkit.faults.chaos import RANKS, ROOM, Act, Schedule
from understudy_testkit.faults.injector import open_gate
from understudy_testkit.faults.operator import TOKEN, api_flags
from understudy_testkit.faults.watching import LiveRun, decided_so_far

MARK = "UNDERSTUDY_CHAOS"
"""A variable that all processes of a run inherit, so that what is left behind can be found."""

_LOOK_EVERY = 0.05
_TIMEOUT = 120.0  # seconds for the world to become what an act expects; a limit for a broken run, never waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """`marks`: for every act how many decisions there were at its two halts, before spares change and before its
    faults; and at the last one. `missed`: faults whose place the job had passed without coming to it. `endings`: rank
    -> what it said."""

    schedule: Schedule
    outcome: RunOutcome
    marks: tuple[tuple[int, int], ...]
    missed: tuple[str, ...]
    endings: dict[int, dict[str, Any]]
    left_behind: tuple[str, ...]


def play(folder: Path, schedule: Schedule, timeout: float = 900.0) -> Played:
    """One run, from its start to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    gate = folder / "gate"
    open_gate(gate, -1)
    mark = f"{folder}-{os.getpid()}"
    run_dir = folder / "run"
    begun = time.monotonic()
    run = LiveRun(launch_command(run_dir, _setup(folder, schedule)), run_dir, folder / "output.txt", RANKS)
    with _marked(mark), run:
        conductor = _Conductor(run, run_dir, schedule, gate, folder / "proofs", begun + timeout)
        scratch = conductor.conduct()
    outcome = outcome_in(folder, run.process.returncode, time.monotonic() - begun)
    seen = {proof["fault"] for proof in outcome.proofs}
    return Played(
        schedule=schedule,
        outcome=outcome,
        marks=tuple(conductor.marks),
        missed=tuple(fault.name for fault in schedule.faults if fault.name not in seen),
        endings=_endings(folder / "endings"),
        left_behind=(*_processes(mark), *(str(path) for path in scratch if path.exists())),
    )


def plain_setup(schedule: Schedule) -> Setup:
    """The same job without faults, spares and gates: what every run of so many steps is held against."""
    return Setup(mode=schedule.mode.value, steps=schedule.steps, ranks=RANKS, spares=0)


def _setup(folder: Path, schedule: Schedule) -> Setup:
    flags = [
        "--ledger-digest-every",
        "1",
        "--step-timeout-min",
        "4.0",
        "--busy-timeout",
        "8.0",
        *api_flags(folder / "tokens"),
    ]
    if schedule.check_replicas_every:
        flags += ["--check-replicas-every", str(schedule.check_replicas_every)]
    if schedule.peer_snapshot_every:
        flags += ["--peer-snapshot-every", str(schedule.peer_snapshot_every)]
    gate = ("--gate", str(folder / "gate"), "--ending", str(folder / "endings"))
    return Setup(
        mode=schedule.mode.value,
        steps=schedule.steps,
        ranks=RANKS,
        spares=schedule.spares,
        flags=tuple(flags),
        script_args=(*fault_flags(folder, schedule.faults), *gate),
    )


@dataclass(slots=True)
class _Conductor:
    run: LiveRun
    run_dir: Path
    schedule: Schedule
    gate: Path
    proofs: Path
    deadline: float
    last: int = -1  # the last step that may begin
    flips: int = 0  # so many were struck before
    marks: list[tuple[int, int]] = field(default_factory=list)

    def conduct(self) -> list[Path]:
        """Returns the folders in memory that the run used."""
        spares = self.schedule.spares
        before = tuple(range(RANKS))
        scratch: list[Path] = []
        for act in self.schedule.acts:
            self._halt(act.step - ROOM, before, spares)
            scratch = scratch or self._scratch()
            early = self._decided()
            for number in act.spares:
                self._keep(number, act)
            self._halt(self.last + 1, act.before, act.offered)
            self._halt(_first_step(act), act.before, act.offered)
            self.marks.append((early, self._decided()))
            before, spares = act.after, act.offered
            self.flips += sum(fault.kind is Kind.FLIP for fault in act.faults)
        self._halt(self.schedule.steps - 2, before, None)
        self.marks.append((self._decided(), self._decided()))
        self._open(self.schedule.steps)
        while self.run.process.poll() is None:
            self._check_time("the job does not end")
            time.sleep(_LOOK_EVERY)
        return scratch

    # -- halting ------------------------------------------------------------------------------------------------------

    def _open(self, last: int) -> None:
        if last > self.last:
            self.last = last
            open_gate(self.gate, last)

    def _halt(self, step: int, present: tuple[int, ...], spares: int | None) -> None:
        """Let the world go on to `step` and no further, until it is what it should be. A boundary that was agreed on
        beyond it has to be reached. `spares` None: however many."""
        self._open(step - 1)
        patience = time.monotonic() + _TIMEOUT
        while (why_not := self._why_not_quiet(present, spares)) is not None:
            self._check_time(why_not)
            if time.monotonic() > patience:
                raise NotProven(f"{self._name()}: waited in vain before step {step}: {why_not}\n{self._story()}")
            boundaries = [d.step for d in self._decisions(DecisionKind.MOVE) if d.step is not None]
            self._open(max(boundaries, default=-1))
            time.sleep(_LOOK_EVERY)

    def _why_not_quiet(self, present: tuple[int, ...], spares: int | None) -> str | None:
        try:
            job, members = self._get("/v1/job"), self._get("/v1/members")
        except (OSError, http.client.HTTPException, ValueError):
            return "the API does not answer"
        steps = {member["rank"]: member["step"] for member in members if member["standing"] == "active"}
        if job["stage"] != Stage.TRAINING.value:
            return f"the stage is {job['stage']}"
        if sorted(steps) != list(present):
            return f"ranks {sorted(steps)} train, and not {list(present)}"
        if set(steps.values()) != {self.last + 1}:
            return f"ranks hold {steps} steps, and not {self.last + 1}"
        if spares is not None and (job["spares_warm"], job["spares_starting"]) != (spares, 0):
            return f"{job['spares_warm']} spares are warm, and {spares} are wanted"
        found = len(self._decisions(DecisionKind.CORRUPT))
        return f"{found} of {self.flips} flips are found" if found < self.flips else None

    def _check_time(self, what: str) -> None:
        if self.run.process.poll() is not None and self.last < self.schedule.steps:
            raise NotProven(f"{self._name()}: the job ended before its time ({what}):\n{self._story()}")
        if time.monotonic() > self.deadline:
            raise NotProven(f"{self._name()} takes too long: {what}\n{self._story()}")

    # -- the job ------------------------------------------------------------------------------------------------------

    def _keep(self, number: int, act: Act) -> None:
        hosts = self._get("/v1/hosts")
        body = {"host": hosts[0]["host"], "spares": number, "reason": f"chaos, act {act.number}"}
        self._ask("POST", "/v1/actions/spares", body)

    def _decided(self) -> int:
        return sum(isinstance(record, DecisionRecord) for record in decided_so_far(self.run_dir))

    def _get(self, page: str) -> Any:
        return self._ask("GET", page, None)

    def _ask(self, method: str, page: str, body: dict[str, object] | None) -> Any:
        url = urlsplit(str(json.loads((self.run_dir / "http.json").read_text())["url"]))
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=10.0)
        try:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
            connection.request(method, page, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise NotProven(f"{method} {page} with {body}: {answer.status} {content.decode(errors='replace')}")
        return json.loads(content)

    def _decisions(self, kind: DecisionKind) -> list[DecisionRecord]:
        records = decided_so_far(self.run_dir)
        return [record for record in records if isinstance(record, DecisionRecord) and record.kind == kind.value]

    def _scratch(self) -> list[Path]:
        pages = [Path(path) for path in self.run.pages()]
        return sorted({page.parent for page in pages})

    def _name(self) -> str:
        return f"{self.schedule.mode} {self.schedule.seed}"

    def _story(self) -> str:
        told = [r for r in decided_so_far(self.run_dir) if isinstance(r, DecisionRecord)]
        lines = [f"  {r.generation:3d} {r.kind}: rank {r.rank} step {r.step}: {r.reason}" for r in told[-25:]]
        return "\n".join(lines)


def _first_step(act: Act) -> int:
    return min([fault.step for fault in act.faults if fault.step is not None], default=act.step)


# -- what is left -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _marked(mark: str) -> Iterator[None]:
    os.environ[MARK] = mark
    try:
        yield
    finally:
        del os.environ[MARK]


def _processes(mark: str, seconds: float = 5.0) -> list[str]:
    """Living processes that carry the mark. What is being taken apart by the kernel gets a moment."""
    deadline = time.monotonic() + seconds
    while (found := list(_find_processes(mark))) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY)
    return found


def _find_processes(mark: str) -> Iterator[str]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in variables and state not in "ZX":
            yield f"process {folder.name}"


def _endings(folder: Path) -> dict[int, dict[str, Any]]:
    return {int(path.stem.removeprefix("rank-")): json.loads(path.read_text()) for path in folder.glob("rank-*.json")}
