"""Lightning's Trainer: `protect(trainer, join())`, and `trainer.fit(...)` survives the loss of ranks.

The batches of one optimizer step are a window: each pass, the clipping and the optimizer are its parts. Validation,
saving and the end of an epoch are sections. A rank that joins gets the counters of the loops, and goes to its batch.
docs/frameworks/lightning.md says what works, what does not and what it costs.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from understudy.errors import UsageError
from understudy.integrations.logged_metrics import LoggedMetrics
from understudy.integrations.wrapping import around, replace
from understudy.training.job import Job
from understudy.training.joining import join
from understudy.training.loop_state import Fields

__all__ = ["join", "protect"]

_OF_CONNECTOR = ("_progress_bar_metrics", "_logged_metrics", "_callback_metrics", "_current_fx", "_first_loop_iter")


def protect(trainer: Any, job: Job) -> Any:
    """Call it before `trainer.fit()`. Returns the trainer."""
    from lightning.pytorch import Callback
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers.csv_logs import ExperimentWriter

    window, fit, loop, entered = job.window, trainer.fit_loop, trainer.fit_loop.epoch_loop, list[bool]()
    passes, validation, modes = loop.automatic_optimization, loop.val_loop, type(loop.val_loop._module_mode)()

    class First(Callback):  # type: ignore[misc]
        """Of all callbacks. `files`: without what an attempt that was cut short has left."""

        files: set[str]

        def on_fit_start(self, _: Any, module: Any) -> None:
            _refuse(trainer, module)
            self.files = {path for one in checkpoints() for path in one._fs.find(one.dirpath)}
            _keep(job, trainer, module)
            around("torch", trainer.optimizers[0], step=step)
            replace("lightning", trainer.precision_plugin, _after_closure=window.part)
            around("lightning", trainer.strategy, save_checkpoint=save_checkpoint)
            for one in checkpoints():
                around("lightning", one, file_exists=file_exists, on_train_batch_end=save_if_due)

        def on_train_batch_end(self, *_: Any) -> None:
            if not loop._should_accumulate():
                window.commit()

    first = First()

    def checkpoints() -> list[Any]:
        return [one for one in trainer.checkpoint_callbacks if isinstance(one, ModelCheckpoint)]

    def make_closure(function: Any, batch: Any, *args: Any) -> Any:
        closure = function(batch, *args)
        compute = closure.closure

        def result() -> Any:
            found = window.part(lambda _: compute().asdict())(batch) or {}
            return passes.output_result_cls(found.pop("loss", None), extra=found)

        closure.closure = result
        return closure

    def step(function: Any, closure: Any = None, **options: Any) -> Any:
        """The pass comes before the fence, and not within the optimizer."""
        loss = closure and closure()
        window.part(function)(**options)
        return loss

    def between(name: str, function: Any) -> Callable[..., Any]:
        section, part = job.section(name, function), window.part(function)
        return lambda *args: (part if loop._should_accumulate() else section)(*args)

    def attempt(function: Any, fetcher: Any) -> None:
        modes.restore(trainer.lightning_module)
        validation._results.reset(metrics=False)
        function(fetcher)

    def end_batch(function: Any, fetcher: Any) -> None:
        due = loop._should_check_val_fx(fetcher)
        modes.capture(trainer.lightning_module)
        (validate if due else attempt)(function, fetcher)

    def save_if_due(function: Any, *args: Any) -> None:
        every = function.__self__._every_n_train_steps
        (save if every and trainer.global_step % every == 0 else _call)(function, *args)

    def save_checkpoint(function: Any, checkpoint: Any, path: Any, **options: Any) -> None:
        function(checkpoint, path, **options)
        first.files.add(str(path))

    def file_exists(function: Any, path: Any, _: Any) -> Any:
        one = function.__self__
        known = {path, one._fs._strip_protocol(path)} & first.files
        there = trainer.is_global_zero and bool(known) and one._fs.exists(path)
        return trainer.strategy.reduce_boolean_decision(there, all=False)

    def begin(function: Any, fetcher: Any) -> None:
        function(fetcher)
        if entered:
            return
        entered.append(True)
        fetcher.setup(job.rewinding(fit._combined_loader))
        job.enter(lambda: _rehearse(trainer))
        if job.is_joiner:
            for progress in (fit.epoch_progress, loop.batch_progress):
                progress.total.reset_on_restart()
                progress.current.reset_on_restart()
            loop.batch_progress.is_last_batch = False
            fit.on_advance_start()
        iter(fetcher)
        fetcher.fetched = loop.batch_progress.current.ready

    @job.section("end")
    def end(function: Any) -> None:
        function()

    def finish(function: Any) -> None:
        end(function)
        job.finish()

    validate, save, end_epoch = between("validate", attempt), between("save", _call), between("end of epoch", _call)
    nothing = {"_broadcast_sigterm_tensor": _nothing}
    replace("lightning", loop, **nothing)
    replace("lightning", trainer._signal_connector, register_signal_handlers=_nothing)
    if job.is_joiner:
        replace("lightning", ExperimentWriter, _check_log_dir_exists=_nothing)
    around("lightning", passes, _make_closure=make_closure)
    around("lightning", loop, on_run_start=begin, on_advance_end=end_batch)
    around("lightning", fit, on_advance_end=end_epoch, on_run_end=finish)
    trainer.callbacks.insert(0, first)
    return trainer


def _keep(job: Job, trainer: Any, module: Any) -> None:
    """What a replacement needs, and what a part or a section must find as it was."""
    fit, loop, strategy, connector = (
        trainer.fit_loop,
        trainer.fit_loop.epoch_loop,
        trainer.strategy,
        trainer._logger_connector,
    )
    schedulers = _numbered("scheduler", (config.scheduler for config in trainer.lr_scheduler_configs))
    job.protect(model=strategy.model, optimizer=trainer.optimizers[0], **schedulers)
    job.carry(epochs=fit.epoch_progress, batches=loop.batch_progress, validation=loop.val_loop.batch_progress)
    job.carry(steps=loop.automatic_optimization.optim_progress, schedules=loop.scheduler_progress)
    job.carry(stepped=Fields(loop, "_batches_that_stepped"), end=Fields(trainer, "should_stop"))
    job.carry(connector=Fields(connector, *_OF_CONNECTOR), hook=Fields(module, "_current_fx_name"))
    job.carry(module=Fields(module), metrics=LoggedMetrics(module, loop._results, strategy.reduce))
    job.carry(**_numbered("fields of callback", map(Fields, trainer.callbacks)))
    job.carry(**_numbered("callback", trainer.callbacks))
    job.carry(**_numbered("logger", map(Fields, trainer.loggers)))
    writers = (getattr(one, "_experiment", None) for one in trainer.loggers)
    writers = (one if hasattr(one, "metrics_file_path") else SimpleNamespace() for one in writers)
    job.carry(**_numbered("log", map(Fields, writers)))


def _rehearse(trainer: Any) -> None:
    """One pass without and one with communication, if batches are accumulated, then the optimizer."""
    loop, batch = trainer.fit_loop.epoch_loop, next(iter(trainer.fit_loop._combined_loader))[0]
    batch = trainer.precision_plugin.convert_input(batch)
    batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
    batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
    trainer._logger_connector.on_batch_start(batch)
    for ready in sorted({1, trainer.accumulate_grad_batches}):
        loop.batch_progress.current.ready = ready
        kwargs = loop._build_kwargs(OrderedDict(), batch, ready - 1)
        loop.automatic_optimization.run(trainer.optimizers[0], ready - 1, kwargs)


def _refuse(trainer: Any, module: Any) -> None:
    """What would not be exact, or could not be led to its place, is said at once."""


def _numbered(name: str, things: Iterable[Any]) -> dict[str, Any]:
    return {f"{name} {place}": thing for place, thing in enumerate(things)}


def _nothing(_: Any) -> Callable[..., None]:
    return lambda *_, **__: None


def _call(function: Any, *args: Any) -> Any:
    return function(*args)
