"""Lightning's Trainer: `protect(trainer, join())`, and `trainer.fit(...)` survives the loss of ranks.

The batches of one optimizer step are a window: each pass, the clipping and the optimizer are its parts. Validation,
saving and the end of an epoch are sections. A rank that joins gets the counters of the loops, and goes to its batch.
docs/frameworks/lightning.md says what works, what does not and what it costs.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from understudy.errors import UsageError
from understudy.integrations.lightning_state import state_of
from understudy.integrations.wrapping import around, call, refuse, replace, switch_off
from understudy.training.job import Job
from understudy.training.joining import join

__all__ = ["join", "protect"]

_CALLBACKS = ("BaseFinetuning", "BatchSizeFinder", "LearningRateFinder", "ModelPruning", "StochasticWeightAveraging")
_REFUSED = {*_CALLBACKS, "Timer", "WeightAveraging"}
_STRATEGIES = ("DDPStrategy", "SingleDeviceStrategy")


def protect(trainer: Any, job: Job) -> Any:
    """Call it before `trainer.fit()`. Returns the trainer."""
    from lightning.pytorch import Callback, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers.csv_logs import ExperimentWriter

    if not isinstance(trainer, Trainer):
        raise UsageError("this adapter is for a Trainer of the package lightning, not of pytorch_lightning")
    window, fit, loop = job.window, trainer.fit_loop, trainer.fit_loop.epoch_loop
    passes, validation = loop.automatic_optimization, loop.val_loop

    class First(Callback):  # type: ignore[misc]
        """Of all callbacks. `files`: checkpoints, but for what an attempt that was cut short has left."""

        files: set[str]

        def on_fit_start(self, *_: Any) -> None:
            saving = [one for one in trainer.checkpoint_callbacks if isinstance(one, ModelCheckpoint)]
            self.files = {path for one in saving for path in one._fs.find(one.dirpath)}
            schedulers = {f"scheduler {place}": one.scheduler for place, one in enumerate(trainer.lr_scheduler_configs)}
            job.protect(model=trainer.strategy.model, optimizer=trainer.optimizers[0], **schedulers)
            job.carry(**state_of(trainer))
            around("torch", trainer.optimizers[0], step=step)
            replace("lightning", trainer.precision_plugin, _after_closure=window.part)
            around("lightning", trainer.strategy, save_checkpoint=save_checkpoint)
            for one in saving:
                around("lightning", one, file_exists=file_exists, on_train_batch_end=save_if_due)

        def on_train_batch_end(self, *_: Any) -> None:
            if not loop._should_accumulate():
                window.commit()

    # -- a window ------------------------------------------------------------------------------------------------------

    def make_closure(function: Any, batch: Any, *args: Any) -> Any:
        closure = function(batch, *args)
        part = window.part(lambda _, compute=closure.closure: compute().asdict())

        def outcome() -> Any:
            found = part(batch) or {}
            return passes.output_result_cls(found.pop("loss", None), extra=found)

        closure.closure = outcome
        return closure

    def step(function: Any, closure: Any = None, **options: Any) -> Any:
        """The pass comes before the fence, and not within the optimizer."""
        loss = closure and closure()
        window.part(function)(**options)
        return loss

    def begin(function: Any, fetcher: Any) -> None:
        function(fetcher)
        _refuse(trainer, fetcher)
        loop.on_run_start = function  # in later epochs
        fetcher.setup(job.rewinding(fit._combined_loader))
        job.enter(lambda: _rehearse(trainer))
        if job.is_joiner:
            for progress in (fit.epoch_progress, loop.batch_progress):
                progress.total.reset_on_restart()
                progress.current.reset_on_restart()
            loop.batch_progress.is_last_batch = False
            fit.on_advance_start()  # of the epoch in which its rank was
        iter(fetcher)
        fetcher.fetched = loop.batch_progress.current.ready

    # -- sections ------------------------------------------------------------------------------------------------------

    def between(name: str, function: Any) -> Callable[..., None]:
        section, part = job.section(name, function), window.part(function)

        def run(*args: Any) -> None:
            (part if loop._should_accumulate() else section)(*args)

        return run

    def attempt(function: Any, fetcher: Any) -> None:
        validation._results.reset(metrics=False)  # an attempt that was cut short has left some
        function(fetcher)

    def end_batch(function: Any, fetcher: Any) -> None:
        (validate if loop._should_check_val_fx(fetcher) else call)(function, fetcher)

    def save_if_due(function: Any, *args: Any) -> None:
        every = function.__self__._every_n_train_steps
        (save if every and trainer.global_step % every == 0 else call)(function, *args)

    def save_checkpoint(function: Any, checkpoint: Any, path: Any, **options: Any) -> None:
        function(checkpoint, path, **options)
        first.files.add(str(path))

    def file_exists(function: Any, path: Any, _: Any) -> Any:
        files = function.__self__._fs
        there = {path, files._strip_protocol(path)} & first.files and files.exists(path)
        return trainer.strategy.reduce_boolean_decision(bool(there) and trainer.is_global_zero, all=False)

    def end(function: Any) -> None:
        job.section("end", function)()
        job.finish()

    first, save, validate = First(), between("save", call), between("validate", attempt)
    switch_off("lightning", loop, "_broadcast_sigterm_tensor")
    switch_off("lightning", trainer._signal_connector, "register_signal_handlers")
    if job.is_joiner:
        switch_off("lightning", ExperimentWriter, "_check_log_dir_exists")  # it would delete the log of its rank
    around("lightning", passes, _make_closure=make_closure)
    around("lightning", loop, on_run_start=begin, on_advance_end=end_batch)
    around("lightning", fit, on_advance_end=between("end of epoch", call), on_run_end=end)
    trainer.callbacks.insert(0, first)
    return trainer


def _rehearse(trainer: Any) -> None:
    """One pass without and one with communication, if batches are accumulated, then the optimizer."""
    loop, batch = trainer.fit_loop.epoch_loop, next(iter(trainer.fit_loop._combined_loader))[0]
    batch = trainer.precision_plugin.convert_input(batch)
    batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
    batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
    trainer._logger_connector.on_batch_start(batch)
    for ready in sorted({1, trainer.accumulate_grad_batches}):
        loop.batch_progress.current.ready = ready
        arguments = loop._build_kwargs(OrderedDict(), batch, ready - 1)
        loop.automatic_optimization.run(trainer.optimizers[0], ready - 1, arguments)


def _refuse(trainer: Any, fetcher: Any) -> None:
    """What would not be exact, or could not be led to its place, is said at once."""
    strategy, options = (
        type(trainer.strategy).__name__,
        ("ckpt_path", "overfit_batches", "reload_dataloaders_every_n_epochs"),
    )
    wrong = {name: getattr(trainer, name) for name in options}
    wrong |= {
        name: True for one in trainer.callbacks for kind in type(one).__mro__ if (name := kind.__name__) in _REFUSED
    }
    wrong |= {
        "manual optimization": not trainer.lightning_module.automatic_optimization,
        "LBFGS": isinstance(trainer.optimizers[0], torch.optim.LBFGS),
        "a gradient scaler": getattr(trainer.precision_plugin, "scaler", None),
        f"the strategy {strategy}": strategy not in _STRATEGIES,
        "an iterable dataset": trainer.fit_loop.max_batches == float("inf"),
        "training_step(dataloader_iter)": hasattr(fetcher, "iterator_wrapper"),
        "a validation interval in time": getattr(trainer, "_val_check_time_interval", None),
        "train_time_interval": any(getattr(one, "_train_time_interval", None) for one in trainer.checkpoint_callbacks),
    }
    refuse("Lightning", wrong)
