"""Supervises the processes of one host: joins processes, logs, connections, the store and detection.

Carries events to the `Controller` and does what that asks for (start, send, kill, stop). It decides nothing about
membership by itself. Joined to a coordinator by the command line.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from understudy.agent.connections import WorkerConnections
from understudy.agent.controller import Controller
from understudy.agent.device_log import KERNEL_LOG, DeviceLog
from understudy.agent.device_metrics import DeviceMetrics
from understudy.agent.environment import base_environment, view_at_birth, worker_environment
from understudy.agent.evidence import EvidenceReview, Report
from understudy.agent.fork_server import ForkServer
from understudy.agent.held_connections import HeldConnections
from understudy.agent.logs import Console, Outlet, Std
from understudy.agent.members import Worker
from understudy.agent.plan import LaunchPlan
from understudy.agent.processes import WatchedProcess, reap_orphans, start_process
from understudy.agent.responses import Response
from understudy.agent.runtime_dir import SOCKET, runtime_dir
from understudy.agent.spare_memory import SpareMemory
from understudy.agent.spool_mover import SpoolMover
from understudy.agent.stack_inquiry import StackInquiry
from understudy.agent.step_report import StepReport
from understudy.agent.store_process import StoreProcess
from understudy.detection.contract import Detector
from understudy.detection.device_health import numbers_of
from understudy.detection.liveness import LivenessWatch
from understudy.detection.pace import PaceWatch
from understudy.detection.process_state import Kernel, kernel_view, process_state
from understudy.detection.progress import Progress, ProgressReader
from understudy.devices import views
from understudy.files.background import BackgroundFiles
from understudy.foundation.clock import Clock
from understudy.foundation.ids import HostId, MemberId, Rank
from understudy.foundation.parenthood import adopt_orphans
from understudy.foundation.settings import WorkerSettings
from understudy.protocol import commands as cmd
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.policy import Policy
from understudy.protocol.sentences import sentence
from understudy.wire import messages as msg
from understudy.wire.inventory import Device

_NEARLY = 0.8  # of a deadline
_DEATH_TIMEOUT = 10.0  # seconds that the kernel may take to end a killed process
_SHORTEST_WAIT = 0.02  # seconds between two ticks, should a deadline stay in the past
_FLUSH_TIMEOUT = 10.0  # seconds that a disk may take at the end of the job


class Supervisor:
    """`run` starts the job and returns how it ended; afterwards no process of it is left."""

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        clock: Clock,
        policy: Policy,
        console: Console,
        say: Callable[[str], None],
        files: BackgroundFiles,
        report: Report | None = None,
        ledger_remade: Callable[[], object] = lambda: None,
        detectors: Sequence[Detector] = (),
        responses: Mapping[str, Response] | None = None,
        devices: Sequence[Device] = (),
        kernel_log: str = KERNEL_LOG,
        beside: Callable[[], WatchedProcess | None] = lambda: None,
    ) -> None:
        """`files`: writes what ranks print. `report`: where evidence goes (the ledger and the terminal); without it, it
        is said. `ledger_remade`: called from a thread when the folder of the ledger had vanished and was made again.
        `detectors` give evidence, and `responses` say by its kind what is asked for then. `devices`: of this host;
        what their driver says is in `kernel_log`. `beside`: a child of this agent that is none of the job's."""
        self.workers: dict[MemberId, Worker] = {}
        self._plan, self._clock, self._policy = plan, clock, policy
        host = HostId(plan.host) if plan.host else THIS_HOST
        self._pace, self._liveness = PaceWatch(), LivenessWatch(policy, plan.look_every, host)
        self._console, self._say, self._files = console, say, files
        self._ledger_remade = ledger_remade
        self._beside = beside
        self._controller: Controller | None = None
        self._stop: cmd.StopJob | None = None
        self._crash: BaseException | None = None
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._empty = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._notes: set[str] = set()
        self._warmth, self._steps = SpareMemory(clock), StepReport()
        self._metrics = DeviceMetrics(plan.device_metrics, say)
        self._devices, self._device_log = tuple(devices), DeviceLog(devices, say, kernel_log)
        self._evidence = EvidenceReview(
            detectors,
            report=report or (lambda record: say(record.reason)),
            say=say,
            responses=responses or {},
            numbers_of=self._numbers_of,
        )

    # -- the job's life -----------------------------------------------------------------------------------------------

    async def run(self, controller: Controller) -> cmd.StopJob:
        self._controller = controller
        with contextlib.ExitStack() as at_the_end:
            self._open(at_the_end)
            looking = asyncio.create_task(self._look_at_progress())
            looking.add_done_callback(self._on_blindness)
            at_the_end.callback(looking.cancel)
            if self._plan.device_metrics:
                at_the_end.callback(asyncio.create_task(self._metrics.keep_fetching()).cancel)
            self._ask(controller.start)
            await self._stopping.wait()
            await self._end_workers()
            await self._write_the_rest()
        if self._crash is not None:
            raise self._crash
        assert self._stop is not None
        return self._stop

    def _open(self, at_the_end: contextlib.ExitStack) -> None:
        self._folder = at_the_end.enter_context(runtime_dir())
        at_the_end.callback(self._device_log.close)
        self._connections = WorkerConnections(str(self._folder / SOCKET), deliver=self._on_message, gone=self._on_gone)
        at_the_end.callback(self._connections.close)
        self._held = HeldConnections(str(self._folder / SOCKET), self._connections.is_member)
        at_the_end.callback(self._held.close)
        self._spools = SpoolMover(
            self._folder, self._plan.run_dir / "ledger", self._files.troubles, self._ledger_remade
        )
        self._inquiry = StackInquiry(
            self._plan.run_dir / "stacks", self._connections.send, self._say, self._state_of, self._files.write_once
        )
        at_the_end.callback(self._inquiry.close)
        environment = base_environment(self._plan.environment, self._plan.world_size)
        self._store = StoreProcess(self._plan.store_command, environment, self._say, self._plan.store_host)
        at_the_end.callback(self._store.close)
        self._fork_server = self._open_fork_server(environment, at_the_end)
        at_the_end.callback(self._drop_workers)

    def _open_fork_server(self, environment: Mapping[str, str], at_the_end: contextlib.ExitStack) -> ForkServer | None:
        if not self._plan.fork_server_command:
            return None
        adopt_orphans()
        fork_server = ForkServer(self._plan.fork_server_command, self._plan.command, environment, self._say)
        at_the_end.callback(fork_server.close)
        return fork_server

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def store_address(self) -> str:
        return f"{self._store.host}:{self._store.port}"

    def hurry(self) -> None:
        """No more grace: the operator asked twice."""
        self._hurry.set()

    @property
    def hurried(self) -> bool:
        return self._hurry.is_set()

    async def _end_workers(self) -> None:
        """SIGTERM, a grace period, SIGKILL. After a success only spares are left, and they have nothing to save."""
        if self._stop is not None and self._stop.outcome is not cmd.Outcome.SUCCEEDED:
            for worker in self.workers.values():
                if worker.process is not None:
                    worker.process.terminate()
            hurry = asyncio.create_task(self._hurry.wait())
            empty = asyncio.create_task(self._empty.wait())
            if self.workers:
                await asyncio.wait((hurry, empty), timeout=self._plan.grace, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            empty.cancel()
        for worker in self.workers.values():
            if worker.process is not None:
                worker.process.kill()
        if self.workers:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), _DEATH_TIMEOUT)

    async def _write_the_rest(self) -> None:
        """What is not on the disk yet: records and output of ranks. A disk that does not take them ends nothing."""
        enough = self._hurry.is_set
        both = await asyncio.gather(
            self._spools.drain(_FLUSH_TIMEOUT, enough), self._files.drain(_FLUSH_TIMEOUT, enough)
        )
        for missing in itertools.chain(*both):
            self._say(f"not everything could be written to {missing}")

    def _drop_workers(self) -> None:
        """No worker should be left by now, unless we crashed ourselves or the kernel does not let a process die."""
        if self._timer is not None:
            self._timer.cancel()
        for worker in list(self.workers.values()):
            if worker.process is not None and not worker.process.kill_and_wait():
                self._say(f"process {worker.process.pid} ({worker.member}) was killed but does not end")
            worker.close()

    # -- what the controller asks for ----------------------------------------------------------------------------------

    def carry_out(self, command: cmd.ToAgent) -> None:
        """Hosts that it names are this one."""
        match command:
            case cmd.StartMember():
                self._start_member(command)
            case cmd.WatchClosely():
                self._liveness.watch_closely(self._clock.now())
            case cmd.KillMember(member=member, hang=hang, reason=reason):
                self._kill(member, hang=hang, reason=sentence(reason))
            case cmd.DismissStranger(member=member, reason=reason):
                self._kill(member, hang=False, reason=sentence(reason))
            case cmd.StopJob():
                self.stop(command)
            case _:
                self._pass_on(command)

    def _start_member(self, start: cmd.StartMember) -> None:
        member, seat = start.member, start.seat
        soon = asyncio.get_running_loop().call_soon
        try:
            worker = self.workers[member] = self._make_worker(member, None if seat is None else seat.rank)
        except OSError as error:  # no room in shared memory, or no descriptors
            soon(self.tell, ev.MemberLost(at=self._clock.now(), member=member, cause=_not_started(error)))
            return
        worker.device, worker.started_at = start.device, self._clock.now()
        self._spools.expect(member)
        self._empty.clear()
        try:
            worker.process = self._start_process(worker, seat)
        except OSError as error:
            soon(self._on_lost, worker, _not_started(error))
        finally:
            for outlet in worker.outlets:
                outlet.started()

    def _make_worker(self, member: MemberId, rank: Rank | None) -> Worker:
        page = ProgressReader(str(self._folder / f"{member}.progress"))
        try:
            streams = (Std.OUT, Std.ERR)
            outlets = tuple(Outlet(self._plan.logs, stream, rank, self._console, self._files) for stream in streams)
        except OSError:
            page.close()
            raise
        return Worker(member, page, outlets, rank=rank)

    def _start_process(self, worker: Worker, seat: cmd.Seat | None) -> WatchedProcess:
        environment = self._environment_for(worker, seat)
        stdout, stderr = (outlet.descriptor for outlet in worker.outlets)

        def on_exit(code: int) -> None:
            self._on_exit(worker, code)

        if self._fork_server is None:
            return start_process(
                self._plan.command, environment=environment, on_exit=on_exit, stdout=stdout, stderr=stderr
            )
        hurry = worker.rank is not None and not self._plan.fork_founders
        return self._fork_server.start(environment, on_exit=on_exit, stdout=stdout, stderr=stderr, hurry=hurry)

    def _pass_on(self, command: cmd.ToMember) -> None:
        if isinstance(command, cmd.AssignRank) and command.member in self.workers:
            worker = self.workers[command.member]
            worker.assigned(command.rank)
            worker.local_rank = command.slot
            worker.device = worker.device if command.device is None else command.device
        for member in cmd.members_of(command):
            self._connections.send(member, command)

    def _kill(self, member: MemberId, *, hang: bool, reason: str) -> None:
        worker = self.workers.get(member)
        if worker is None or worker.process is None:
            return
        worker.ended_for, worker.ended_for_hang = reason, hang
        if hang:
            worker.first_sign = worker.page.look().at
            self._inquiry.alarm_about(member, self.workers)
        worker.process.kill()

    def stop(self, stop: cmd.StopJob) -> None:
        if self._stop is None:
            self._stop = stop
            self._stopping.set()

    # -- what happens -------------------------------------------------------------------------------------------------

    def _on_message(self, member: MemberId, message: msg.FromWorker) -> None:
        worker = self.workers.get(member)
        if worker is None or self._controller is None:
            return
        match message:
            case msg.Hello():
                worker.first_sign = None
                self.tell(ev.MemberConnected(at=self._clock.now(), member=member))
            case msg.BequestTold(content=content):
                self._controller.inherited(member, content)
            case msg.Measured():
                self._controller.measured(message)
            case msg.ScriptFailed():
                worker.failure, worker.first_sign = message, self._clock.now()
            case msg.Stacks():
                self._inquiry.answered(member, message)
            case msg.ActivityReport():
                self._liveness.answered(self._clock.now(), member, message)
            case msg.Note(text=text):
                if text not in self._notes:
                    self._notes.add(text)
                    self._say(text)
            case _:
                self._on_event(worker, message)

    def _on_event(self, worker: Worker, event: ev.FromMember) -> None:
        match event:
            case ev.MemberParked():
                worker.warm = True
            case ev.PositionReported(generation=generation):
                self._held.left(worker.member, generation)
        self.tell(structs.replace(event, at=self._clock.now()))

    def _on_gone(self, member: MemberId) -> None:
        """No loss by itself: the member connects again, or its process ends."""
        worker = self.workers.get(member)
        if worker is not None and worker.first_sign is None:
            worker.first_sign = self._clock.now()

    def _on_exit(self, worker: Worker, code: int) -> None:
        """Its last words first, then the news of its end, which must come through in any case."""
        try:
            self._held.ended(worker.member, clean=code == 0)
            self._connections.drain(worker.member)
            for outlet in worker.outlets:
                outlet.drain()
        finally:
            self._on_lost(worker, self._with_device_fault(worker, worker.cause(code)))

    def _with_device_fault(self, worker: Worker, cause: Cause) -> Cause:
        """What the driver said of its device while it lived, unless we ended it or it ended well."""
        if worker.device_number is None or cause.kind is CauseKind.DISMISSED or cause.exit_code == 0:
            return cause
        self._device_log.look(self._clock.now())
        return replace(cause, device_fault=self._device_log.fault_of(worker.device_number, worker.started_at))

    def _on_lost(self, worker: Worker, cause: Cause) -> None:
        self._connections.forget(worker.member)
        self._spools.ended(worker.member)
        worker.close()
        del self.workers[worker.member]
        if worker.first_sign is not None and self._controller is not None:
            self._controller.lost_since(worker.member, worker.first_sign)
        self.tell(ev.MemberLost(at=self._clock.now(), member=worker.member, cause=cause))
        if not self.workers:
            self._empty.set()

    async def _look_at_progress(self) -> None:
        while True:
            await asyncio.sleep(self._plan.look_every)
            self._device_log.look(self._clock.now())
            pages = {member: worker.page.look() for member, worker in self.workers.items()}
            self._bury_orphans()
            for member, memory in self._warmth.wishes(self.workers):
                self._connections.send(member, msg.KeepWarm(memory=memory))
            self._look_for_silence(pages)
            self._look_for_steps(pages)
            for request in self._evidence.look(self._clock.now(), self.workers, pages):
                self.tell(request)

    def _look_for_silence(self, pages: Mapping[MemberId, Progress]) -> None:
        now = self._clock.now()
        learnt = self._pace.observe(now, pages)
        look = self._liveness.observe(now, pages, self._kernel_of, self._pace.pace)
        for member, number in look.ask:
            self._connections.send(member, msg.AskActivity(number=number))
        self._ask_for_stacks(now)
        for event in (*learnt, *look.events):
            self.tell(event)

    def _look_for_steps(self, pages: Mapping[MemberId, Progress]) -> None:
        news = self._steps.look(self._clock.now(), self.workers, pages)
        if news is not None and self._controller is not None:
            self._controller.advanced(*news)

    def _ask_for_stacks(self, now: float) -> None:
        """Asked for before anything is decided, so that the answers are there then."""
        deadline = self._policy.stall_deadline(self._pace.pace)
        silent = self._liveness.silent_for(now)
        if silent >= deadline:
            self._inquiry.alarm_once(self.workers)
        elif silent >= _NEARLY * min(deadline, self._policy.unresponsive_timeout):
            self._inquiry.ask(self.workers)
        else:
            self._inquiry.forget()

    def _numbers_of(self, worker: Worker) -> Mapping[str, float]:
        """Of its device, if an exporter counts for us."""
        if worker.rank is None or worker.device_number is None or not self._metrics.devices:
            return {}
        visible = self._plan.environment.get(views.VARIABLE)
        return numbers_of(worker.device_number, self._metrics.devices, visible)

    def _bury_orphans(self) -> None:
        if self._fork_server is None or self._fork_server.expecting:
            return  # a worker that was just forked is a child that we do not know yet
        ours = [worker.process for worker in self.workers.values()]
        ours += [self._store.process, self._fork_server.process, self._beside()]
        reap_orphans([process.pid for process in ours if process is not None and process.pid is not None])

    def _on_blindness(self, looking: "asyncio.Task[None]") -> None:
        """Looking ends only with the job; otherwise a bug of ours would leave hangs unseen."""
        if not looking.cancelled() and (error := looking.exception()) is not None:
            self._fail(error)

    def _state_of(self, member: MemberId) -> str:
        process = self.workers[member].process
        return "" if process is None or process.pid is None else process_state(process.pid)

    def _kernel_of(self, member: MemberId, control_thread: int | None) -> Kernel:
        process = self.workers[member].process
        return Kernel() if process is None or process.pid is None else kernel_view(process.pid, control_thread)

    # -- small change -------------------------------------------------------------------------------------------------

    def tell(self, event: ev.Event) -> None:
        assert self._controller is not None
        controller = self._controller
        self._ask(lambda: controller.handle(event))

    def _ask(self, question: Callable[[], None]) -> None:
        """Let the controller work, and remember when it wants to be woken. Its failure ends the job, orderly."""
        try:
            question()
        except Exception as error:  # a bug of ours must not leave processes behind
            self._fail(error)
            return
        self._set_timer()

    def _fail(self, error: BaseException) -> None:
        self._crash = self._crash or error
        self._stopping.set()

    def _set_timer(self) -> None:
        assert self._controller is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._controller.next_deadline()
        if deadline is not None and not self._stopping.is_set():
            wait = max(_SHORTEST_WAIT, deadline - self._clock.now())
            self._timer = asyncio.get_running_loop().call_later(wait, self._ask, self._controller.tick)

    def _environment_for(self, worker: Worker, seat: cmd.Seat | None) -> dict[str, str]:
        member, inherited = worker.member, self._plan.environment
        devices = views.listed(inherited, len(self._devices))
        settings = WorkerSettings(
            socket=str(self._folder / SOCKET),
            member=member,
            token=self._connections.expect(member),
            run_dir=str(self._plan.run_dir),
            progress_file=str(self._folder / f"{member}.progress"),
            store_host=self._store.host,
            host=self._plan.host,
            store_port=self._store.port,
            ledger_digest_every=self._plan.ledger_digest_every,
            ledger_digests=self._plan.ledger_digests,
            check_replicas_every=self._plan.check_replicas_every,
            peer_snapshot_every=self._plan.peer_snapshot_every,
            checkpoint_dir=self._plan.checkpoint_dir,
            checkpoint_every=self._plan.checkpoint_every,
            devices=devices if worker.device is not None and seat is None else (),
        )
        view = view_at_birth(devices, seat, worker.device)
        return worker_environment(inherited, settings, seat, self._plan.world_size, view)


def _not_started(error: OSError) -> Cause:
    return Cause(kind=CauseKind.EXIT, detail=f"its process could not be started: {error}")
