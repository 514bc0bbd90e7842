"""Hugging Face's Trainer: `protect(trainer, join())`, and `trainer.train()` survives the loss of ranks.

Each optimizer step of the Trainer is a window whose parts are its own methods; logging, evaluation and saving are
sections. A rank that joins is led to its place in the data by the arguments with which the Trainer resumes a
checkpoint, without one. docs/frameworks/hugging_face.md says what works, what does not and what it costs.
"""

import functools
from typing import Any

from torch.utils.data import IterableDataset

from understudy.errors import UsageError
from understudy.integrations.history import History
from understudy.integrations.open_loaders import OpenLoaders
from understudy.integrations.wrapping import around, refuse, replace, whole
from understudy.training.job import Job
from understudy.training.joining import join
from understudy.training.loop_state import Fields

__all__ = ["join", "protect"]

_PARTS = ("_get_num_items_in_batch", "training_step", "_track_num_input_tokens", "_clip_grad_norm", "_get_grad_norm")
_PLACE = ("resume_from_checkpoint", "epochs_trained", "steps_trained_in_current_epoch")
_OF_TRAINER = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "current_flos")
_OF_STATE = ("epoch", "global_step", "num_input_tokens_seen", "total_flos")
_OF_BEST = ("best_metric", "best_global_step", "best_model_checkpoint")


def protect(trainer: Any, job: Job) -> Any:
    """Call it before `trainer.train()`. Returns the trainer."""
    from transformers.trainer_callback import ExportableState, TrainerCallback

    window, done, accelerator = job.window, list[int](), trainer.accelerator

    def prepare(function: Any, *args: Any, **kwargs: Any) -> Any:
        model, loader = function(*args, **kwargs)
        log = History(trainer.state, "log_history", ("_runtime", "_per_second"))
        job.protect(model=model, optimizer=trainer.optimizer, scheduler=trainer.lr_scheduler, log=log)
        job.protect(**({"scaler": accelerator.scaler} if accelerator.scaler else {}))
        job.carry(trainer=Fields(trainer, *_OF_TRAINER), state=Fields(trainer.state, *_OF_STATE, *_OF_BEST))
        job.carry(loaders=OpenLoaders(accelerator.gradient_state))
        callbacks = [one for one in trainer.callback_handler.callbacks if isinstance(one, ExportableState)]
        job.carry(**{f"callback {place}": Fields(one) for place, one in enumerate([trainer.control, *callbacks])})
        replace("accelerate", trainer.optimizer, step=window.part)
        return model, loader

    def run_epoch(function: Any, *, epoch: int, num_update_steps_per_epoch: int, **rest: Any) -> None:
        if epoch and _is_iterable(trainer.train_dataset):
            raise UsageError("the iterable dataset came to its end before max_steps: let it repeat itself")
        if not done:
            done.append(job.enter(lambda: _rehearse(trainer, rest["model"], rest["train_dataloader"])))
        began, place = divmod(done[0], num_update_steps_per_epoch)
        if epoch == began and place:
            batches = place * trainer.args.gradient_accumulation_steps  # "": no checkpoint, but a place in the epoch
            rest |= dict(zip(_PLACE, ("", epoch, batches), strict=True))
        if epoch >= began:
            function(epoch=epoch, num_update_steps_per_epoch=num_update_steps_per_epoch, **rest)

    @job.section("log, evaluate, save")
    def between(function: Any, *args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)

    def if_due(function: Any, *args: Any, **kwargs: Any) -> None:
        control = trainer.control
        if control.should_log or control.should_evaluate or control.should_save:
            between(function, *args, **kwargs)

    def train(function: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse(trainer, *args, **kwargs)
        result = function(*args, **kwargs)
        job.finish()
        return result

    class Commit(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            window.commit()

    replace("transformers", trainer, **dict.fromkeys(_PARTS, lambda function: window.part(whole(function))))
    replace("transformers", trainer, _finalize_training=functools.partial(job.section, "finalize"))
    around("transformers", trainer, _prepare_for_training=prepare, _run_epoch=run_epoch, train=train)
    around("transformers", trainer, _maybe_log_save_evaluate=if_due)
    trainer.add_callback(Commit())
    return trainer


def _rehearse(trainer: Any, model: Any, loader: Any) -> None:
    """One pass without and one with communication, as under accumulation, then the optimizer."""
    batch = next(iter(loader.base_dataloader))
    trainer.current_gradient_accumulation_steps = 1
    trainer.accelerator.gradient_state._set_sync_gradients(True)
    with trainer.accelerator.no_sync(model=model):
        trainer.training_step(model, batch)
    trainer.training_step(model, batch)
    trainer._clip_grad_norm(model)
    trainer.optimizer.step()
    model.zero_grad()


def _refuse(trainer: Any, resume_from_checkpoint: Any = None, **_: Any) -> None:
    """What would not be exact, or could not be led to its place, is said at once."""
    args, no_seed = trainer.args, not trainer.args.accelerator_config.use_seedable_sampler
    wrong = {name: getattr(args, name) for name in ("auto_find_batch_size", "eval_on_start", "deepspeed")}
    wrong |= {"resume_from_checkpoint": resume_from_checkpoint, "use_seedable_sampler=False": no_seed}
    dispatched = args.accelerator_config.dispatch_batches is not False
    wrong |= {"an iterable dataset without dispatch_batches=False": _is_iterable(trainer.train_dataset) and dispatched}
    refuse("the Trainer", wrong)


def _is_iterable(dataset: Any) -> bool:
    """Its order is a function of what was read before: a rank that joins reads it from the begin, in one epoch."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
