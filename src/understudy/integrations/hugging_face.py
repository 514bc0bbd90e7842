"""Hugging Face's Trainer: `protect(Trainer(...), join())`, and its `train()` survives the loss of ranks.

Each optimizer step of the Trainer is a window whose parts are its own methods; logging, evaluation and saving are
sections. A rank that joins is led to its place in the data by the arguments with which the Trainer resumes a
checkpoint, without one. docs/frameworks/hugging_face.md says what works, what does not and what it costs.
"""

import functools
from collections.abc import Callable
from typing import Any

from understudy.errors import UsageError
from understudy.integrations.wrapping import wrap
from understudy.training.job import Job
from understudy.training.joining import join
from understudy.training.loop_state import Fields

__all__ = ["join", "protect"]

_PARTS = ("_get_num_items_in_batch", "training_step", "_track_num_input_tokens", "_clip_grad_norm", "_get_grad_norm")
_OF_TRAINER = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "current_flos")
_OF_STATE = ("epoch", "global_step", "num_input_tokens_seen", "total_flos")
_OF_BEST = ("best_metric", "best_global_step", "best_model_checkpoint")
_TIMES = ("_runtime", "_per_second")  # of log entries: no two runs have the same


class History:
    """The log of a TrainerState as a state, without times: it is then equal in all ranks and runs."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        log = self._state.log_history
        return {"log": [{name: entry[name] for name in entry if not name.endswith(_TIMES)} for entry in log]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        known = len(state["log"]) if self.state_dict()["log"][: len(state["log"])] == state["log"] else 0
        self._state.log_history[known:] = state["log"][known:]


def protect(trainer: Any, job: Job) -> Any:
    """Call it before `trainer.train()`. Returns the trainer."""
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    window = job.window
    done: list[int] = []  # steps that were trained when this process took part

    class Commit(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            window.commit()

    def prepare(function: Callable[..., Any]) -> Callable[..., Any]:
        def prepared(*args: Any, **kwargs: Any) -> Any:
            model, loader = function(*args, **kwargs)
            scaler = {"scaler": trainer.accelerator.scaler} if trainer.accelerator.scaler else {}
            log = History(trainer.state)
            job.protect(model=model, optimizer=trainer.optimizer, scheduler=trainer.lr_scheduler, log=log, **scaler)
            job.carry(trainer=Fields(trainer, *_OF_TRAINER), state=Fields(trainer.state, *_OF_STATE, *_OF_BEST))
            job.carry(control=Fields(trainer.control))
            callbacks = [one for one in trainer.callback_handler.callbacks if isinstance(one, ExportableState)]
            job.carry(**{f"callback {place}": Fields(one) for place, one in enumerate(callbacks)})
            wrap("accelerate", trainer.optimizer, step=window.part)
            return model, loader

        return prepared

    def run_epoch(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*, epoch: int, num_update_steps_per_epoch: int, **rest: Any) -> None:
            if not done:
                done.append(job.enter(lambda: _one_step(trainer, rest["model"], rest["train_dataloader"])))
            began, place = divmod(done[0], num_update_steps_per_epoch)
            if epoch < began:
                return
            if epoch == began and place:
                batches = place * trainer.args.gradient_accumulation_steps
                rest |= {"epochs_trained": epoch, "steps_trained_in_current_epoch": batches}
                rest["resume_from_checkpoint"] = ""  # there is none, but the place in the epoch counts
            function(epoch=epoch, num_update_steps_per_epoch=num_update_steps_per_epoch, **rest)

        return run

    def if_due(function: Callable[..., Any]) -> Callable[..., Any]:
        loaders = trainer.accelerator.gradient_state.dataloader_references

        def run(*args: Any, **kwargs: Any) -> Any:
            loaders[:] = known  # an evaluation that was cut short has left its own there
            return function(*args, **kwargs)

        section, known = job.section("log, evaluate, save", run), []

        def run_if_due(*args: Any, **kwargs: Any) -> Any:
            known[:] = loaders
            control = trainer.control
            due = control.should_log or control.should_evaluate or control.should_save
            return section(*args, **kwargs) if due else None

        return run_if_due

    def finish(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            _refuse(trainer, *args, **kwargs)
            result = function(*args, **kwargs)
            job.finish()
            return result

        return run

    parts = dict.fromkeys(_PARTS, window.part)
    final = functools.partial(job.section, "finalize")
    sections = {"_maybe_log_save_evaluate": if_due, "_finalize_training": final}
    wrap(
        "transformers", trainer, **parts, **sections, _prepare_for_training=prepare, _run_epoch=run_epoch, train=finish
    )
    trainer.add_callback(Commit())
    return trainer


def _one_step(trainer: Any, model: Any, loader: Any) -> None:
    """What a rank that joins rehearses: two passes as under accumulation, then the optimizer."""
    batch = next(iter(loader.base_dataloader))
    trainer.current_gradient_accumulation_steps = 1
    trainer.accelerator.gradient_state._set_sync_gradients(True)
    if trainer.args.gradient_accumulation_steps > 1:
        with trainer.accelerator.no_sync(model=model):
            trainer.training_step(model, batch)
    trainer.training_step(model, batch)
    trainer._clip_grad_norm(model)
    trainer.optimizer.step()
    model.zero_grad()


def _refuse(trainer: Any, resume_from_checkpoint: Any = None, **_: Any) -> None:
    """What would not be exact, or could not be led to its place, is said at once."""
    args = trainer.args
    wrong = {
        "auto_find_batch_size": args.auto_find_batch_size,
        "eval_on_start": args.eval_on_start,
        "deepspeed": args.deepspeed,
        "resume_from_checkpoint": bool(resume_from_checkpoint),
        "dispatch_batches": trainer.accelerator.dispatch_batches,
        "use_seedable_sampler=False": not args.accelerator_config.use_seedable_sampler,
        "a dataset without a length": not hasattr(trainer.train_dataset, "__len__"),
    }
    if found := [name for name, given in wrong.items() if given]:
        raise UsageError(f"Understudy's adapter of the Trainer does not work with {', '.join(found)}")
