"""The user's handle on the job: join, protect, steps.

The same script runs under `understudy run` (protected), under torchrun, or under plain python; without Understudy's
services every step has a single attempt and nothing is recorded.
"""

import atexit
import functools
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.optim.optimizer import register_optimizer_step_pre_hook

from understudy.detection.progress import Place, ProgressWriter
from understudy.errors import ProtectError, UsageError
from understudy.foundation.ids import Generation, Rank
from understudy.foundation.settings import PlainSettings, WorkerSettings, publish_rank
from understudy.groups.communicators import CommunicatorFamily
from understudy.groups.engines import Engines, engines_in_memory
from understudy.groups.fence import Fences
from understudy.groups.store import InterruptibleStore
from understudy.groups.world import World
from understudy.ledger.spool import SpoolWriter
from understudy.protocol.loop import Next, what_next
from understudy.protocol.sharing_out import Reduction
from understudy.state.buffers import ChangingBuffers
from understudy.state.keepsakes import Keepsakes
from understudy.state.manifest import Protected, SaveFunction, Stateful
from understudy.state.snapshots import Snapshots
from understudy.training import memory, nursery, supported
from understudy.training.audit import unprotected_state
from understudy.training.bequest import BequestFile
from understudy.training.checkpointing import Checkpointing
from understudy.training.control import ControlLine
from understudy.training.data import StepData, as_step_data
from understudy.training.degrading import Degrading
from understudy.training.ending import finish, finish_early
from understudy.training.fingerprint import fingerprint_of
from understudy.training.loader import LoaderData
from understudy.training.member import Member
from understudy.training.neighbour import Neighbour
from understudy.training.optimizers import Unprotected, optimizers_within
from understudy.training.own_buffers import OwnBuffers
from understudy.training.own_state import OwnState
from understudy.training.part_steps import next_part
from understudy.training.randomness import derived_seed, seed_all
from understudy.training.record import StepLedger
from understudy.training.saving import Saving
from understudy.training.step_loader import StepLoader
from understudy.training.steps import ProtectedStep, RehearsalStep, Step, TailStep
from understudy.training.warmth import warm_up
from understudy.wire import messages

_SPARE_PATIENCE = 0.3  # a founding member is told its rank at once; who waits longer than this is a spare


class Job:
    """What `join()` returns. `rank`, `local_rank`, `world_size`, `device` and `seed` are final then."""

    def __init__(
        self,
        *,
        rank: int,
        local_rank: int,
        world_size: int,
        seed: int,
        tracked: bool,
        device: torch.device,
        member: Member | None,
    ) -> None:
        self.rank, self.local_rank, self.world_size = rank, local_rank, world_size
        self.seed, self.device = seed, device
        self._tracked = tracked
        self._member = member
        self._protected = member.protected if member else Protected()
        self._data: StepData | None = None
        self._share = (rank, world_size)
        self._reduction: Reduction = "mean"
        self._current: Step | None = None
        self._looped = False
        self._joined_at = time.monotonic()

    @property
    def protected(self) -> bool:
        """Does `understudy run` stand behind this process?"""
        return self._member is not None

    # -- protect ------------------------------------------------------------------------------------------------------

    def protect(
        self,
        *,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        data: Any = None,
        save: SaveFunction | None = None,
        load: SaveFunction | None = None,
        share: tuple[int, int] | None = None,
        reduction: Reduction | None = None,
        **others: Any,
    ) -> None:
        """Name everything that must survive. Further keywords: modules, optimizers, or anything with `state_dict`.

        `share=(index, count)`: this rank works on part `index` of `count` equal parts of each batch, and draws the
        random numbers of that part. Ranks that work on the same samples (tensor or pipeline parallel) have the same
        share. By default every rank has its own.

        `reduction`: how the loss of a batch comes from its samples, "mean" (the default) or "sum". Only a world that
        goes on without some of its ranks needs to know (docs/degrade.md).
        """
        if self._looped:
            raise UsageError("call job.protect() before the loop over job.steps()")
        if (save is None) != (load is None):
            raise ProtectError("give both save= and load= to job.protect(), or neither")
        named = {"model": model, "optimizer": optimizer, **others}
        for name, thing in named.items():
            if thing is not None:
                self._register(name, thing)
        if save is not None:
            self._protected.save, self._protected.load = save, load
        if share is not None:
            self._share = share
        if reduction is not None:
            if reduction not in ("mean", "sum"):
                raise ProtectError(f'reduction is {reduction!r}: it can be "mean" or "sum"')
            self._reduction = reduction
        if data is not None:
            self._data = as_step_data(data, self.seed, self._say)
            if isinstance(self._data, LoaderData):
                self._data.protected = self._member is not None
                if self._member is not None:
                    self._member.own_state.loader = self._data

    def _register(self, name: str, thing: Any) -> None:
        if isinstance(thing, nn.Module):
            self._protected.modules[name] = thing
        elif inner := optimizers_within(thing):
            for place, optimizer in enumerate(inner):
                self._register(name if len(inner) == 1 else f"{name}/{place}", optimizer)
        elif isinstance(thing, torch.optim.Optimizer):
            if isinstance(getattr(thing, "optim", None), torch.optim.Optimizer):
                raise ProtectError(
                    f"{name} is a {type(thing).__name__}, which keeps its state in an optimizer inside of it, each "
                    "rank a part of its own: a replacement would not get it. Use the plain optimizer, with FSDP2 "
                    "(fully_shard) if its state must be sharded"
                )
            self._protected.optimizers[name] = thing
            thing.register_step_pre_hook(self._before_optimizer)
            thing.register_step_post_hook(self._after_optimizer)
        elif isinstance(thing, Stateful):
            self._protected.objects[name] = thing
            if isinstance(thing, torch.amp.GradScaler):
                self._fence_before(thing)
        else:
            raise ProtectError(
                f"{name} is a {type(thing).__name__}: it is no module, no optimizer, and has no state_dict and "
                "load_state_dict"
            )

    def _fence_before(self, scaler: torch.amp.GradScaler) -> None:
        """A scaler that finds infinities skips the optimizer, and changes its scale: that must not happen before all
        ranks have arrived either."""
        for name in ("step", "update"):
            change = getattr(scaler, name)

            def arrive_and_change(*args: Any, change: Callable[..., Any] = change, **kwargs: Any) -> Any:
                self._before_optimizer(None)
                return change(*args, **kwargs)

            setattr(scaler, name, functools.wraps(change)(arrive_and_change))

    def _before_optimizer(self, optimizer: torch.optim.Optimizer | None, *_: Any) -> None:
        if isinstance(self._current, ProtectedStep):
            self._current.before_optimizer(optimizer)

    def _before_unnamed(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if all(optimizer is not known for known in self._protected.unnamed):
            self._protected.unnamed.append(optimizer)
        self._before_optimizer(optimizer)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if isinstance(self._current, ProtectedStep):
            self._current.after_optimizer(optimizer)

    # -- steps --------------------------------------------------------------------------------------------------------

    def steps(self, total: int) -> Iterator[Step]:
        """Yields each step until `total` are committed. A body may run again after a fault; only one run commits."""
        if self._looped:
            raise UsageError("job.steps() can be looped over once; give it the total number of steps")
        self._looped = True
        if isinstance(self._data, StepLoader):
            self._data.begin(total, self._share)
        if self._member is None:
            return self._plain_steps(total)
        self._warn_about_unprotected(self._member, sys._getframe(1))
        if self._protected.saves_alone:
            register_optimizer_step_pre_hook(self._before_unnamed)
        elif self._protected.save is None:
            register_optimizer_step_pre_hook(Unprotected(self._protected).refuse)
        return self._protected_steps(self._member, total)

    def _plain_steps(self, total: int) -> Iterator[Step]:
        try:
            for number in range(total):
                self._current = Step(number, 0, self._prepare, self._fetch)
                yield self._current
                self._check_entered(self._current)
        finally:
            self._end_loader()

    def _protected_steps(self, member: Member, total: int) -> Iterator[Step]:
        modules = engines_in_memory() if self._protected.saves_alone else list(self._protected.modules.values())
        member.engines = Engines(modules)
        member.buffers = ChangingBuffers(modules)
        member.ledger.use(self._data, self._share)
        member.degrading = self._degrading(member)
        member.total = total
        if member.joiner:
            yield from self._rehearse(member)
        else:
            member.checkpoints.resume(member)
            member.began_at = member.holds or 0
            member.in_steps = True
        attempt = 0
        try:
            while True:
                member.come_back_to_loop()
                match what_next(member.holds, total, abandoned=member.abandoned):
                    case Next.RECOVER:
                        member.recover()
                        continue
                    case Next.FINISH if finish(member):
                        return
                    case Next.FINISH:
                        continue
                number = member.holds or 0
                if not member.control.begin_step(number):
                    continue  # a boundary: the generation is abandoned here
                if (parts := member.degrading.parts) is None:
                    self._current = step = ProtectedStep(member, number, attempt, self._prepare, self._fetch)
                else:
                    self._current = step = next_part(member, parts, number, attempt, self._seed)
                yield step
                self._check_entered(step)
                if step.partial:
                    continue  # the same attempt goes on
                attempt = attempt + 1 if member.holds == number else 0
                if member.joiner and step.committed:
                    memory.use_normally()
        except GeneratorExit:
            # The script has left the loop: by `break`, or because of an error that its hook will report. Only the end
            # of the process shows which.
            atexit.register(finish_early, member)
            raise
        finally:
            self._current = None
            self._end_loader()

    def _rehearse(self, member: Member) -> Iterator[Step]:
        """Run the body without peers until its engines have settled, then take part."""
        member.ledger.time("setup", time.monotonic() - self._joined_at)
        start = time.monotonic()
        member.phase("rehearse")
        member.engines.prepare_sandbox(member.world)
        settled = False
        while not settled:
            self._current = step = RehearsalStep(member, self._prepare, self._fetch_for_rehearsal)
            yield step  # on as many threads as the script uses: more of them than free cores would wait for each other
            self._check_entered(step)
            settled = step.settled
        member.ledger.time("rehearsal", time.monotonic() - start)
        self._protected.forget_gradients()
        plan = member.await_first_plan()
        if plan.tail is None:
            member.in_steps = True
            member.carry_out(plan)
            return
        self._current = tail = TailStep(member, plan, self._prepare, self._fetch_for_rehearsal)
        yield tail
        self._check_entered(tail)

    def _degrading(self, member: Member) -> Degrading:
        return Degrading(
            data=self._data,
            share=self._share,
            tracked=self._tracked,
            reduction=self._reduction,
            engines=member.engines,
            protected=self._protected,
            habits=member.habits,
        )

    def _prepare(self, number: int) -> None:
        if not self._tracked:
            self._seed(number, self._share[0])

    def _seed(self, number: int, share: int) -> None:
        seed_all(derived_seed(self.seed, number, share))

    def _fetch(self, number: int) -> Any:
        if self._data is None:
            raise UsageError("step.batch() needs data: give it to job.protect(data=...)")
        return self._data.batch(number, *self._share)

    def _fetch_for_rehearsal(self, number: int) -> Any:
        if isinstance(self._data, StepLoader):
            return self._data.rehearse(number, *self._share)
        return self._fetch(number)

    def _end_loader(self) -> None:
        if isinstance(self._data, StepLoader):
            self._data.close()

    def _say(self, text: str) -> None:
        """To the user, once for all ranks."""
        if self.rank != 0:
            return
        if self._member is None:
            print(f"understudy: {text}", file=sys.stderr, flush=True)
        elif not self._member.joiner:
            self._member.note(text)

    @staticmethod
    def _check_entered(step: Step) -> None:
        if not step.entered:
            raise UsageError("write `with step:` around the body of the loop; without it nothing is committed")

    def _warn_about_unprotected(self, member: Member, frame: Any) -> None:
        names = {**frame.f_globals, **frame.f_locals}
        forgotten = unprotected_state(names, self._protected)
        if forgotten and self.rank == 0:
            member.note(
                f"these objects have state that a replacement would not get: {', '.join(forgotten)}. "
                f"Give them to job.protect(), for example job.protect({forgotten[0]}={forgotten[0]})"
            )

    def on_phase(self, listener: Callable[[str, int], None]) -> None:
        """Call `listener(phase, generation)` when this process enters a phase of a recovery (for metrics and tests)."""
        if self._member is not None:
            self._member.on_phase(listener)


def join(
    *,
    backend: str | None = None,
    seed: int = 0,
    rng: Literal["derived", "tracked"] = "derived",
    timeout: timedelta = timedelta(minutes=30),
) -> Job:
    """Become a member of the job and initialise torch.distributed. A spare waits here until it is given a rank.

    `rng`: "derived" seeds every step from (seed, step, rank); "tracked" leaves the streams to the script and ships
    them with the rank.
    """
    if rng not in ("derived", "tracked"):
        raise UsageError(f'join(rng={rng!r}): it can be "derived" or "tracked"')
    tracked = rng == "tracked"
    settings = WorkerSettings.from_environment()
    if settings is None:
        return _join_plain(backend, seed, tracked, timeout)
    nursery.start_again_if_unlike_the_others()
    try:
        if dist.is_initialized():
            raise UsageError(
                "torch.distributed is initialised already: understudy.join() makes the default process group; remove "
                "your own call of init_process_group"
            )
        family = supported.check(backend)
    except UsageError as error:
        _report_before_joining(settings, error)
        raise
    return _join_protected(settings, family, seed, tracked, timeout)


def _report_before_joining(settings: WorkerSettings, error: UsageError) -> None:
    """There is no member yet that could say why it ends."""
    control = ControlLine(settings.socket, settings.member, settings.token)
    summary = "".join(traceback.format_exception_only(error)).strip()
    failed = messages.ScriptFailed(step=None, summary=summary, fingerprint=fingerprint_of(error), repeats=True)
    control.send(failed)


def _join_plain(backend: str | None, seed: int, tracked: bool, timeout: timedelta) -> Job:
    plain = PlainSettings.from_environment()
    device = _device(plain.local_rank)
    if not dist.is_initialized():
        chosen = backend or _backend_for(device)
        if plain.launched:
            dist.init_process_group(chosen, timeout=timeout)
        else:
            dist.init_process_group(chosen, rank=0, world_size=1, store=HashStore(), timeout=timeout)
    seed_all(seed)
    return Job(
        rank=dist.get_rank(),
        local_rank=plain.local_rank,
        world_size=dist.get_world_size(),
        seed=seed,
        tracked=tracked,
        device=device,
        member=None,
    )


def _join_protected(
    settings: WorkerSettings, family: CommunicatorFamily, seed: int, tracked: bool, timeout: timedelta
) -> Job:
    progress = ProgressWriter(settings.progress_file)
    control = ControlLine(settings.socket, settings.member, settings.token)
    assignment = control.await_assignment(_SPARE_PATIENCE) or _wait_as_spare(control, progress)
    progress.show(assignment.generation, -1, Place.SETUP)
    store_host, store_port = _store_of(assignment, settings)
    publish_rank(
        assignment.rank,
        assignment.local_rank,
        assignment.world_size,
        assignment.local_world_size,
        store_host,
        store_port,
    )
    device = _device(assignment.local_rank)
    joiner = not assignment.founding
    scratch = os.path.dirname(settings.progress_file)
    holder: list[Member] = []
    world = World(
        family=family,
        rank=Rank(assignment.rank),
        size=assignment.world_size,
        founded_in=Generation(assignment.founded_in),
        store=InterruptibleStore(store_host, store_port, lambda: bool(holder) and holder[0].interrupted, timeout),
        abandoned=lambda: bool(holder) and holder[0].interrupted,
        timeout=timeout,
        device=device,
        formed=control.hand_over,
    )
    spool = SpoolWriter(scratch, settings.member, lambda text: control.send(messages.Note(text=text)))
    ledger = StepLedger(spool, settings.member, assignment.rank, assignment.world_size, settings.digest_every)
    fences = Fences(scratch, assignment.rank, assignment.world_size, one_host=not settings.host)
    protected = Protected()
    own_buffers = OwnBuffers(Keepsakes(scratch, assignment.founded_in, assignment.rank, "buffers"), protected)
    own_state = OwnState(Keepsakes(scratch, assignment.founded_in, assignment.rank), tracked, joiner)
    member = Member(
        control=control,
        world=world,
        fences=fences,
        own_state=own_state,
        own_buffers=own_buffers,
        protected=protected,
        bequest=BequestFile(scratch, assignment.founded_in, assignment.rank),
        host=settings.host,
        progress=progress,
        ledger=ledger,
        joiner=joiner,
        checkpoints=Checkpointing(
            Path(settings.checkpoint_dir) if settings.checkpoint_dir else None,
            settings.checkpoint_every,
            "" if settings.host else settings.run_dir,
        ),
        saving=Saving(
            Snapshots(scratch, assignment.founded_in, assignment.rank, settings.save_every),
            Neighbour(scratch, assignment.founded_in, assignment.rank, settings.host if settings.save_every else ""),
        ),
        compare_every=settings.compare_every,
    )
    member.between.install()
    holder.append(member)
    if joiner:
        world.enter_sandbox(member.inherit())
    else:
        world.found()
    seed_all(seed)
    _report_uncaught_errors(member)
    return Job(
        rank=assignment.rank,
        local_rank=assignment.local_rank,
        world_size=assignment.world_size,
        seed=seed,
        tracked=tracked,
        device=device,
        member=member,
    )


def _store_of(assignment: messages.Assign, settings: WorkerSettings) -> tuple[str, int]:
    if not assignment.store:
        return settings.store_host, settings.store_port
    host, _, port = assignment.store.rpartition(":")
    return host, int(port)


def _report_uncaught_errors(member: Member) -> None:
    """An error outside the steps is the script's own as well; its traceback is shown as always."""
    show = sys.excepthook

    def report_and_show(kind: Any, error: BaseException, trace: Any) -> None:
        member.report_script_error(error, None)
        show(kind, error, trace)

    sys.excepthook = report_and_show


def _wait_as_spare(control: ControlLine, progress: ProgressWriter) -> messages.Assign:
    """Get warm, then sleep without using the CPU until a rank is given to us."""
    warm_up()
    progress.show(0, -1, Place.PARKED)
    control.say_parked()
    ready = 0
    while (assignment := control.await_assignment_or_wish(ready)) is None:
        ready = control.wanted_memory
        memory.touch(ready)
    return assignment


def _device(local_rank: int) -> torch.device:
    return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")


def _backend_for(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"
