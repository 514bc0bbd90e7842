"""The user's handle on the job, which `join()` returns: protect, steps.

The same script runs under `understudy run` (protected), under torchrun, or under plain python; without Understudy's
services every step has a single attempt and nothing is recorded.
"""

import atexit
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from understudy.errors import ProtectError, UsageError
from understudy.foundation.ids import StepNumber
from understudy.groups.engines import engines_in_memory
from understudy.protocol.loop import Next, what_next
from understudy.protocol.sharing_out import Reduction
from understudy.state.protected_state import Protected, SaveFunction, Stateful
from understudy.training.audit import Unprotected, optimizers_within, unprotected_state
from understudy.training.data.stateful_loader import LoaderData
from understudy.training.data.step_data import SeveralBatches, StepData, as_step_data, batches_of, steps_per_epoch_of
from understudy.training.data.step_loader import StepLoader
from understudy.training.data.streams import is_read_again
from understudy.training.degraded.step import next_part
from understudy.training.epochs import ENDLESS, Epoch, Epochs, OpenEnd
from understudy.training.member import Member
from understudy.training.positions import PositionedLoader, Positions
from understudy.training.rewinding import Begin, Rewinding
from understudy.training.rng import derived_seed, seed_all
from understudy.training.steps import ProtectedStep, RehearsalStep, Step, TailStep
from understudy.training.warmup import allocate_normally
from understudy.training.windows import Window

_END = "understudy/end"  # the name of what is protected of a loop
_SECTION, _PART, _ITEM = (
    0x5EC710,
    0x9A27_0000,
    0x17E3,
)  # make the seeds of sections and so on differ from those of steps


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
        self._protected = member.body.protected if member else Protected()
        self._data: StepData | None = None
        self._share = (rank, world_size)
        self._reduction: Reduction = "mean"
        self._current: Step | None = None
        self._looped = False
        self._end: OpenEnd | None = None

    @property
    def protected(self) -> bool:
        """Does `understudy run` stand behind this process?"""
        return self._member is not None

    @property
    def is_joiner(self) -> bool:
        """Has this process been given the rank of a lost one? It gets the state of that when its loop begins."""
        return self._member is not None and self._member.status.joiner

    # -- protect ------------------------------------------------------------------------------------------------------

    def protect(
        self,
        *,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        data: Any = None,
        save: SaveFunction | None = None,
        load: SaveFunction | None = None,
        batches_per_step: int = 1,
        share: tuple[int, int] | None = None,
        reduction: Reduction | None = None,
        **others: Any,
    ) -> None:
        """Name everything that must survive. Further keywords: modules, optimizers, or anything with `state_dict`.

        `batches_per_step`: batches that a step takes from the data, for scripts that accumulate gradients:
        `step.batches()` yields them.

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
            self._data = as_step_data(data, self.seed, self._say, batches_per_step)
            if isinstance(self._data, LoaderData):
                self._data.protected = self._member is not None
                if self._member is not None:
                    self._member.rank_local.loader = self._data

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

    def steps(self, total: int | None = None) -> Iterator[Step]:
        """Yields each step until `total` are committed. A body may run again after a fault; only one run commits.
        Without a total the loop goes on until the script calls `job.finish()` in it."""
        if total is None:
            self._end_openly(ENDLESS)
        return self._steps(ENDLESS if total is None else total)

    def epochs(self, count: int, steps_per_epoch: int | None = None) -> Iterator[Epoch]:
        """Yields each epoch; `epoch.steps()` yields its steps. Write `with epoch:` around what an epoch does: a rank
        that joins goes to the epoch in which the others are. How many steps an epoch has the data knows, mostly."""
        per_epoch = steps_per_epoch or steps_per_epoch_of(self._data, self._share[1])
        end = self._end_openly(count * per_epoch)
        return iter(Epochs(self._steps(count * per_epoch), count, per_epoch, end))

    def finish(self) -> None:
        """The step that has just been committed is the last one: the loop ends by itself. All ranks must call it after
        the same step. For loops over epochs, for loops without a total, and behind a loop of windows."""
        if "window" in self.__dict__:
            self.window.finish()
            return
        if self._end is None:
            raise UsageError("job.finish() ends a loop over job.epochs(), or over job.steps() without a total")
        if self._member is None:
            self._end.total = 0 if self._current is None else self._current.number + 1
        elif self._member.status.in_steps and self._member.status.holds is not None:
            self._end.total = self._member.status.holds

    # -- windows: loops that are not ours -----------------------------------------------------------------------------

    @functools.cached_property
    def window(self) -> Window:
        """Calls of a loop that is not yours, such as a trainer's, that run again in place after a fault."""
        return Window(self._member, self._prepare, self._seed_part, self._use)

    def carry(self, **things: Any) -> None:
        """Small state of the loop: counters, running sums. Objects with `state_dict`, or others: their plain fields."""
        for name, thing in things.items():
            self.window.state.carry(name, thing)

    def rewinding(self, loader: Any, begin: Begin | None = None) -> Any:
        """The loader, which yields the items of a window again after a fault; in a replacement it goes on where its
        rank was. Its worker processes, and what they make ahead, stay. `begin(epoch, place)`: its items from a place
        on, for a loader that can skip. A loader that knows its position (`state_dict`) is put there; others are read
        up to there, and so are streams of which a state does not hold all."""
        positions = None
        if begin is None and isinstance(loader, PositionedLoader) and not is_read_again(loader):
            positions = Positions(loader)
            begin = positions.begin
        found = Rewinding(loader, self._seed_item, begin, positions)
        self.window.add_loader(found, positions)
        return found

    def enter(self, rehearse: Callable[[], Any]) -> int:
        """Call it before the loop: how many steps are trained already, which the loop must skip. A replacement calls
        `rehearse`, which does once what a step does, and gets its state here."""
        if self._looped:
            raise UsageError("a process has one loop: job.enter() cannot follow job.steps() or another job.enter()")
        if self._data is not None:
            raise UsageError("windows read from job.rewinding(loader): leave data= of job.protect() out")
        if self._tracked:
            raise UsageError('windows seed every part: leave rng="tracked" of understudy.join() out')
        self._looped, member = True, self._member
        if member is not None:
            member.body.use(engines_in_memory() if self._protected.saves_alone else self._protected.modules.values())
            member.ledger.use(self.window, self._share)
            member.degraded.use(None, self._share, self._tracked, self._reduction)
            member.status.total = ENDLESS
            member.sections.seed, member.sections.loop = self._seed_section, self.window.state
            member.replicas.in_windows = True
        return self.window.enter(rehearse)

    def _use(self, step: Step | None) -> None:
        self._current = step

    def _seed_part(self, number: int, part: int) -> None:
        seed_all(derived_seed(self.seed ^ (_PART + part), number, self._share[0]))

    def _seed_item(self, epoch: int, place: int | None) -> None:
        share = 0 if place is None else 1 + self._share[0]
        seed_all(derived_seed(self.seed ^ _ITEM, (epoch << 32) + (place or 0), share))

    def _end_openly(self, total: int) -> OpenEnd:
        self._end = self._protected.objects[_END] = OpenEnd(total)
        return self._end

    def _steps(self, total: int) -> Iterator[Step]:
        if self._looped:
            raise UsageError("job.steps() can be looped over once; give it the total number of steps")
        self._looped = True
        if (loader := self._loader()) is not None:
            loader.begin(total * batches_of(self._data), self._share)
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
                if self._end is not None and number >= self._end.total:
                    return
                self._current = Step(number, 0, self._prepare, self._fetch)
                yield self._current
                self._check_entered(self._current)
        finally:
            self._end_loader()

    def _protected_steps(self, member: Member, total: int) -> Iterator[Step]:
        status = member.status
        protected = self._protected
        member.body.use(engines_in_memory() if protected.saves_alone else protected.modules.values())
        member.ledger.use(self._data, self._share)
        member.degraded.use(self._data, self._share, self._tracked, self._reduction)
        status.total = total
        member.sections.seed = self._seed_section
        if status.joiner:
            yield from self._rehearse(member)
        else:
            member.checkpoints.resume()
            status.began_at = status.holds or StepNumber(0)
            status.in_steps = True
        attempt = 0
        try:
            while True:
                member.recovery.come_back_to_loop()
                end = total if self._end is None else self._end.total
                if member.ahead.unread and (member.control.boundary is not None or (status.holds or 0) >= end):
                    member.recovery.know_what_is_held()
                match what_next(status.holds, end, abandoned=status.abandoned):
                    case Next.RECOVER:
                        member.recovery.recover()
                        continue
                    case Next.FINISH if member.shutdown.finish():
                        return
                    case Next.FINISH:
                        continue
                number = status.holds or 0
                if not member.control.begin_step(number):
                    continue  # a boundary: the generation is abandoned here
                if (accumulation := member.degraded.accumulation) is None:
                    self._current = step = ProtectedStep(member, number, attempt, self._prepare, self._fetch)
                else:
                    self._current = step = next_part(member, accumulation, number, attempt, self._seed)
                yield step
                self._check_entered(step)
                if step.partial:
                    continue  # the same attempt goes on
                attempt = attempt + 1 if status.holds == number else 0
                if status.joiner and step.committed:
                    allocate_normally()
        except GeneratorExit:
            # The script has left the loop: by `break`, or because of an error that its hook will report. Only the end
            # of the process shows which.
            atexit.register(member.shutdown.finish_early)
            raise
        finally:
            self._current = None
            self._end_loader()

    def _rehearse(self, member: Member) -> Iterator[Step]:
        """Run the body without peers until its engines have settled, then take part."""
        member.status.phase("rehearse")
        member.body.engines.prepare_sandbox(member.world)
        settled = False
        while not settled:
            self._current = step = RehearsalStep(member, self._prepare, self._fetch_for_rehearsal)
            yield step  # on as many threads as the script uses: more of them than free cores would wait for each other
            self._check_entered(step)
            settled = step.settled
        self._protected.forget_gradients()
        plan = member.recovery.await_first_plan()
        if plan.tail is None:
            member.status.in_steps = True
            member.recovery.carry_out(plan)
            return
        self._current = tail = TailStep(member, plan, self._prepare, self._fetch_for_rehearsal)
        yield tail
        self._check_entered(tail)

    # -- between steps ------------------------------------------------------------------------------------------------

    def section(self, name: str, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """A function that all ranks run as a whole, between two steps: an evaluation, the writing of a checkpoint. It
        may communicate, and runs again if a rank is lost in it. Use it as a decorator, or give it the function.

        Behind a step it does nothing and returns None where that was a rehearsal, or has not been committed.
        """
        if function is None:
            return functools.partial(self.section, name)
        if self._member is not None:
            self._member.tail.expected = True

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            call = functools.partial(function, *args, **kwargs)
            member = self._member
            if member is None or not self._looped:
                return call()
            if not member.status.in_steps or (self._current is not None and self._current.comes_again):
                return None
            return member.sections.run(name, call)

        return run

    def _prepare(self, number: int) -> None:
        if not self._tracked:
            self._seed(number, self._share[0])

    def _seed(self, number: int, share: int) -> None:
        seed_all(derived_seed(self.seed, number, share))

    def _seed_section(self, number: int, place: int) -> None:
        if not self._tracked:
            seed_all(derived_seed(self.seed ^ (_SECTION + place), number, self._share[0]))

    def _fetch(self, number: int) -> Any:
        if self._data is None:
            raise UsageError("step.batch() needs data: give it to job.protect(data=...)")
        return self._data.batch(number, *self._share)

    def _fetch_for_rehearsal(self, number: int) -> Any:
        loader = self._loader()
        if loader is None:
            return self._fetch(number)
        batches = batches_of(self._data)
        made = [loader.rehearse(number * batches + place, *self._share) for place in range(batches)]
        return made[0] if self._data is loader else made

    def _end_loader(self) -> None:
        if (loader := self._loader()) is not None:
            loader.close()

    def _loader(self) -> StepLoader | None:
        inner = self._data.data if isinstance(self._data, SeveralBatches) else self._data
        return inner if isinstance(inner, StepLoader) else None

    def _say(self, text: str) -> None:
        """To the user, once for all ranks."""
        if self.rank != 0:
            return
        if self._member is None:
            print(f"understudy: {text}", file=sys.stderr, flush=True)
        elif not self._member.status.joiner:
            self._member.control.note(text)

    @staticmethod
    def _check_entered(step: Step) -> None:
        if not step.entered:
            raise UsageError("write `with step:` around the body of the loop; without it nothing is committed")

    def _warn_about_unprotected(self, member: Member, frame: Any) -> None:
        names = {**frame.f_globals, **frame.f_locals}
        forgotten = unprotected_state(names, self._protected)
        if forgotten and self.rank == 0:
            member.control.note(
                f"these objects have state that a replacement would not get: {', '.join(forgotten)}. "
                f"Give them to job.protect(), for example job.protect({forgotten[0]}={forgotten[0]})"
            )

    def on_phase(self, listener: Callable[[str, int], None]) -> None:
        """Call `listener(phase, generation)` when this process enters a phase of a recovery (for metrics and tests)."""
        if self._member is not None:
            self._member.status.on_phase(listener)
