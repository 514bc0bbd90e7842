"""The supervisor with a controller that a test plays."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.agent.launching import alive

from understudy.agent import supervisor
from understudy.agent.environment import base_environment, view_at_birth, worker_environment
from understudy.agent.logs import LogPlan
from understudy.agent.members import Worker
from understudy.agent.plan import LaunchPlan
from understudy.agent.supervisor import Supervisor
from understudy.detection.progress import Place, ProgressReader, ProgressWriter
from understudy.files.background import BackgroundFiles
from understudy.foundation.clock import SystemClock
from understudy.foundation.ids import MemberId, Rank
from understudy.foundation.settings import WorkerSettings
from understudy.protocol.causes import Afterwards, CauseKind
from understudy.protocol.commands import Outcome, Seat, StartMember, StopJob
from understudy.protocol.events import Event, MemberLost
from understudy.protocol.policy import Policy
from understudy.protocol.reasons import Code, because
from understudy.protocol.sentences import sentence
from understudy.wire.inventory import Device
from understudy.wire.messages import Measured, ScriptFailed

MEMBER = MemberId("m-0")
NO_LOG = Path("/dev/null")
IDLE = (sys.executable, "-S", "-E", "-c", "import sys; sys.stdin.read()")


class Controller:
    """Starts one member and does with events what the test says."""

    def __init__(self, on_event: Callable[["Controller", Event], None]) -> None:
        self.supervisor: Supervisor | None = None
        self.events: list[Event] = []
        self.advances: list[tuple[int, int]] = []
        self._on_event = on_event

    def start(self) -> None:
        assert self.supervisor is not None
        self.supervisor.carry_out(StartMember(member=MEMBER, seat=Seat(rank=Rank(0))))

    def handle(self, event: Event) -> None:
        self.events.append(event)
        self._on_event(self, event)

    def tick(self) -> None: ...

    def next_deadline(self) -> float | None:
        return None

    def lost_since(self, member: MemberId | None, at: float) -> None: ...

    def inherited(self, member: MemberId, bequest: bytes) -> None: ...

    def measured(self, told: Measured) -> None: ...

    def advanced(self, smallest: int, largest: int) -> None:
        self.advances.append((smallest, largest))


def run(
    tmp_path: Path, controller: Controller, *command: str, devices: tuple[Device, ...] = (), log: Path = NO_LOG
) -> StopJob:
    async def scene() -> StopJob:
        plan = LaunchPlan(
            command=command,
            environment=dict(os.environ),
            world_size=1,
            run_dir=tmp_path,
            logs=LogPlan(folder=tmp_path),
            store_command=IDLE,
        )
        controller.supervisor = Supervisor(
            plan,
            clock=SystemClock(),
            policy=Policy(world_size=1),
            console=lambda _stream, _data: None,
            say=lambda _text: None,
            files=BackgroundFiles(print),
            devices=devices,
            kernel_log=str(log),
        )
        return await controller.supervisor.run(controller)

    return asyncio.run(scene())


def _stop(controller: Controller, event: Event) -> None:
    assert controller.supervisor is not None
    controller.supervisor.stop(StopJob(outcome=Outcome.FAILED, reason=because(Code.TOLD, text=str(event)), exit_code=1))


@pytest.mark.processes
def test_a_program_that_cannot_be_started_is_a_loss_and_no_crash(tmp_path: Path) -> None:
    controller = Controller(_stop)
    run(tmp_path, controller, "/nowhere/at/all")
    (lost,) = controller.events
    assert isinstance(lost, MemberLost) and "could not be started" in lost.cause.detail


@pytest.mark.processes
def test_a_member_without_shared_memory_is_a_loss_and_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: str) -> ProgressReader:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(supervisor, "ProgressReader", full)
    controller = Controller(_stop)
    run(tmp_path, controller, "/bin/true")
    (lost,) = controller.events
    assert isinstance(lost, MemberLost) and "No space left on device" in lost.cause.detail


@pytest.mark.processes
def test_a_bug_in_the_decider_leaves_no_process_behind(tmp_path: Path) -> None:
    seen: list[int] = []

    def fail(controller: Controller, _event: Event) -> None:
        assert controller.supervisor is not None
        if not seen:
            controller.supervisor.carry_out(StartMember(member=MemberId("m-1")))
            process = controller.supervisor.workers[MemberId("m-1")].process
            assert process is not None and process.pid is not None
            seen.append(process.pid)
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run(tmp_path, Controller(fail), "/bin/sh", "-c", '[ -z "$RANK" ] && sleep 60; exit 3')
    assert len(seen) == 1 and not alive(seen[0])


def worker(tmp_path: Path) -> tuple[Worker, ProgressWriter]:
    path = str(tmp_path / "page")
    return Worker(MEMBER, ProgressReader(path), ()), ProgressWriter(path)


def test_causes(tmp_path: Path) -> None:
    member, page = worker(tmp_path)
    assert member.cause(3).kind is CauseKind.EXIT and member.cause(3).step is None
    page.show(1, 41, Place.IN_STEP)
    killed = member.cause(-9)
    assert (killed.kind, killed.exit_code, killed.step) == (CauseKind.SIGNAL, -9, 41)
    member.failure = ScriptFailed(step=40, summary="ValueError: x", fingerprint="f")
    failed = member.cause(5)
    assert (failed.kind, failed.exit_code, failed.step) == (CauseKind.SCRIPT_ERROR, 5, 40)
    assert failed.fingerprint == "f" and failed.detail == "ValueError: x"
    assert member.cause(-6).exit_code == 1, "it raised, and then its teardown crashed"
    member.ended_for, member.ended_for_hang = "it hangs", True
    assert member.cause(-9) == member.cause(-6), "it raised, and then took too long to end"
    member.failure = None
    assert member.cause(-9).kind is CauseKind.HANG
    member.ended_for_hang = False
    assert member.cause(-9).kind is CauseKind.DISMISSED
    page.show(1, -1, Place.RECOVERING)
    assert member.cause(1).step is None


def test_the_environment_of_ranks_and_spares() -> None:
    settings = WorkerSettings(
        socket="/s",
        member=MEMBER,
        token="t",
        run_dir="/r",
        progress_file="/p",
        store_host="127.0.0.1",
        store_port=7,
    )
    inherited = {"PATH": "/bin", "RANK": "99"}
    rank = worker_environment(inherited, settings, Seat(rank=Rank(3), local_rank=3, local_world_size=8), 8)
    assert (rank["RANK"], rank["LOCAL_RANK"], rank["WORLD_SIZE"], rank["MASTER_PORT"]) == ("3", "3", "8", "7")
    assert rank["OMP_NUM_THREADS"] == "1" and rank["PATH"] == "/bin"
    assert WorkerSettings.from_environment(rank) == settings
    spare = worker_environment(inherited, settings, None, 8)
    assert "RANK" not in spare and "WORLD_SIZE" not in spare
    assert rank["TORCHELASTIC_RUN_ID"] == spare["TORCHELASTIC_RUN_ID"], "Lightning asks for it, in joiners too"
    assert "OMP_NUM_THREADS" not in worker_environment(inherited, settings, Seat(rank=Rank(0)), 1)
    store = "10.0.0.1:29500"
    seat = Seat(rank=Rank(5), local_rank=1, local_world_size=4, node_rank=1, nodes=2, store_address=store)
    elsewhere = worker_environment(inherited, settings, seat, 8)
    assert (elsewhere["RANK"], elsewhere["LOCAL_RANK"], elsewhere["LOCAL_WORLD_SIZE"]) == ("5", "1", "4")
    assert (elsewhere["GROUP_RANK"], elsewhere["GROUP_WORLD_SIZE"]) == ("1", "2")
    assert (elsewhere["MASTER_ADDR"], elsewhere["MASTER_PORT"]) == ("10.0.0.1", "29500")
    kept = worker_environment({"OMP_NUM_THREADS": "4"}, settings, Seat(rank=Rank(0)), 2)
    assert kept["OMP_NUM_THREADS"] == "4"


def test_secrets_stay_with_the_agent() -> None:
    """The token of a worker is its own; the one that its agent was started with is not passed on."""
    settings = WorkerSettings(
        socket="/s", member=MEMBER, token="own", run_dir="/r", progress_file="/p", store_host="127.0.0.1", store_port=7
    )
    tokens = {"UNDERSTUDY_JOB_TOKEN": "job", "UNDERSTUDY_API_TOKEN": "api", "UNDERSTUDY_TOKEN": "of another agent"}
    assert base_environment({"PATH": "/bin"} | tokens, 1) == {"PATH": "/bin"}
    for seat in (None, Seat(rank=Rank(0))):
        passed_on = worker_environment(tokens, settings, seat, 2)
        assert not {"job", "api", "of another agent"} & set(passed_on.values())
        assert passed_on["UNDERSTUDY_TOKEN"] == "own"


THREE = ("4", "5", "6")


@pytest.mark.parametrize(
    ("seat", "device", "view"),
    [
        (Seat(rank=Rank(1), local_rank=1), None, None),
        (Seat(rank=Rank(1), local_rank=1), 1, None),
        (Seat(rank=Rank(1), local_rank=1), 2, "4,6,5"),
        (None, 2, "6,5,4"),
        (None, None, None),
    ],
    ids=["nothing decided", "the device of its place", "another one", "a spare", "a spare of which nothing is decided"],
)
def test_what_a_process_sees_of_devices_at_its_birth(seat: Seat | None, device: int | None, view: str | None) -> None:
    found = view_at_birth(THREE, seat, device)
    assert found.get("CUDA_VISIBLE_DEVICES") == view
    assert ("PYTORCH_NVML_BASED_CUDA_CHECK" in found) == (seat is None and device is not None)


@pytest.mark.processes
def test_a_spare_is_born_with_its_device_in_front(tmp_path: Path) -> None:
    class StartsSpare(Controller):
        def start(self) -> None:
            assert self.supervisor is not None
            self.supervisor.carry_out(StartMember(member=MEMBER, device=1))

    names = "CUDA_VISIBLE_DEVICES", "UNDERSTUDY_DEVICES"
    told = tmp_path / "told"
    code = f"import os; open({str(told)!r}, 'w').write(' '.join(os.environ.get(n, '-') for n in {names}))"
    two = tuple(Device(slot=slot, pci_bus_id=f"0000:{slot}b:00.0") for slot in range(2))
    run(tmp_path, StartsSpare(_stop), sys.executable, "-S", "-c", code, devices=two)
    assert told.read_text() == "1,0 0,1"


@pytest.mark.processes
@pytest.mark.parametrize("ended", [71, -9], ids=["by itself", "by a signal"])
def test_a_loss_is_told_with_what_the_driver_said_of_the_device(tmp_path: Path, ended: int) -> None:
    class StartsRank(Controller):
        def start(self) -> None:
            assert self.supervisor is not None
            self.supervisor.carry_out(StartMember(member=MEMBER, seat=Seat(rank=Rank(0)), device=1))

    log = tmp_path / "kmsg"
    log.write_text("NVRM: Xid (PCI:0000:1b:00): 48, before the job began\n")
    said = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=python, GPU has fallen off the bus."
    end = f"os._exit({ended})" if ended > 0 else f"os.kill(os.getpid(), {-ended})"
    code = f"import os; print({said!r}, file=open({str(log)!r}, 'a', buffering=1)); {end}"
    two = tuple(Device(slot=slot, pci_bus_id=f"0000:{slot}b:00.0") for slot in range(2))
    controller = StartsRank(_stop)
    run(tmp_path, controller, sys.executable, "-S", "-c", code, devices=two, log=log)
    (lost,) = controller.events
    assert isinstance(lost, MemberLost) and lost.cause.exit_code == ended
    assert lost.cause.device_fault is not None and lost.cause.device_fault.afterwards is Afterwards.NEVER
    assert sentence(lost.cause.reason).endswith("its device reported Xid 79 (the device has fallen off the bus)")
