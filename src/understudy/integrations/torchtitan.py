"""torchtitan's Trainer: `protect(trainer, join())`, and `trainer.train()` survives the loss of ranks.

`understudy run ... -m understudy.integrations.torchtitan ARGUMENTS` does that for what `-m torchtitan.train` would run.
A training step is a window whose parts are the trainer's own calls, and which ends when the learning rate has changed.
What is reduced for the log behind it, validation and saving are sections. docs/frameworks/torchtitan.md says what
works, what does not and what it costs.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from understudy.devices.memory import is_host
from understudy.integrations.wrapping import around, refuse, replace, switch_off, whole
from understudy.training.job import Job
from understudy.training.joining import join
from understudy.training.loop_state import Fields

__all__ = ["join", "protect"]


class _Loader:
    """The trainer's loader, whose own `state_dict` would be a pickle."""

    def __init__(self, loader: Any) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader

        self._loader = loader
        self.state_dict = functools.partial(StatefulDataLoader.state_dict, loader)
        self.load_state_dict = functools.partial(StatefulDataLoader.load_state_dict, loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)


def protect(trainer: Any, job: Job) -> Any:
    """Call it before `trainer.train()`. Returns the trainer."""
    from torchtitan.distributed import utils

    _refuse(trainer)
    torch.autograd.set_multithreading_enabled(False)  # torchtitan does so where it makes the process groups itself
    window, entered, checkpointer = job.window, list[int](), trainer.checkpointer
    mesh = trainer.parallel_dims.get_optional_mesh("batch")
    share = (0, 1) if mesh is None else (mesh.get_local_rank(), mesh.size())
    job.protect(**{f"part {place}": part for place, part in enumerate(trainer.model_parts)}, share=share)
    job.protect(optimizer=trainer.optimizers, rate=trainer.lr_schedulers)
    job.carry(trainer=Fields(trainer, "step", "ntokens_seen"))
    loader, trainer.dataloader = trainer.dataloader, job.rewinding(_Loader(trainer.dataloader))

    def train_step(function: Any, batches: Any) -> None:
        if not entered:
            entered.append(job.enter(lambda: _rehearse(trainer, loader)))
        function(batches)

    def clip(function: Any, parameters: Any, *rest: Any, **options: Any) -> Any:
        return window.part(lambda: whole(function)(parameters, *rest, **options))()

    def change_rate(function: Any) -> None:
        function()
        window.commit()

    def save(function: Any, step: int, last_step: bool = False) -> Any:
        due = checkpointer.enable and checkpointer._should_save(step, last_step)
        return saved(function, step, last_step) if due else False

    def train(function: Any) -> None:
        function()
        job.finish()

    saved = job.section("save", lambda function, *args: function(*args))
    if job.is_joiner:
        switch_off("torchtitan", checkpointer, "load")
    switch_off("torchtitan", utils, "set_pg_timeouts")
    around("torchtitan", utils, clip_grad_norm_=clip)
    replace("torchtitan", utils, dist_sum_tensor=window.part, dist_sum=_in_log(job), dist_max=_in_log(job))
    replace("torchtitan", trainer, forward_backward_step=lambda function: window.part(_local(function)))
    replace("torchtitan", trainer.optimizers, step=window.part)
    around("torchtitan", trainer.lr_schedulers, step=change_rate)
    around("torchtitan", trainer, train_step=train_step, train=train)
    around("torchtitan", checkpointer, save=save)
    if trainer.config.validator.enable:
        replace("torchtitan", trainer.validator, validate=functools.partial(job.section, "validate"))
    return trainer


def _in_log(job: Job) -> Callable[..., Any]:
    return functools.partial(job.section, "log")


def _local(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a loss is here: torchtitan reduces no more of it, and a replacement can be told of it."""

    def run(**batch: Any) -> Any:
        loss = function(**batch).detach()
        return loss.to_local() if hasattr(loss, "to_local") else loss

    return run


def _rehearse(trainer: Any, loader: Any) -> None:
    """What a step does, but for the schedule and the log."""
    from torchtitan.distributed import utils

    several = trainer.num_pipeline_parallel_microbatches
    batches = [batch for batch, _ in zip(loader, range(several), strict=False)]
    inputs, labels = map(list, zip(*batches, strict=True))
    tokens = utils.dist_sum_tensor(torch.tensor(1).to(trainer.device), trainer.parallel_dims.get_optional_mesh("batch"))
    for _ in range(min(2, trainer.gradient_accumulation_steps)):
        trainer.forward_backward_step(
            input_dict=inputs if trainer.parallel_dims.pp_enabled else inputs[0],
            labels=labels if trainer.parallel_dims.pp_enabled else labels[0],
            global_valid_tokens=tokens,
        )
    parameters = [one for part in trainer.model_parts for one in part.parameters()]
    pipeline, experts = trainer.parallel_dims.get_optional_mesh("pp"), trainer.parallel_dims.ep_enabled
    utils.clip_grad_norm_(
        parameters, trainer.config.training.max_norm, foreach=True, pp_mesh=pipeline, ep_enabled=experts
    )
    trainer.optimizers.step()


def _refuse(trainer: Any) -> None:
    """What would not be exact, or could not be led to its place, is said at once."""
    config, kinds = trainer.config, {type(one).__name__ for one in trainer.optimizers.optimizers}
    graphs = not is_host(trainer.device) and not config.training.disable_cuda_graphs
    wrong = {
        "CUDA graphs (set --training.disable_cuda_graphs)": graphs,
        "checkpoints written in the background": getattr(config.checkpoint, "async_mode", "disabled") != "disabled",
        "an optimizer that communicates in its step": kinds - {"Adam", "AdamW"},
        "a loader without a state": not hasattr(trainer.dataloader, "load_state_dict"),
    }
    refuse("torchtitan", wrong)


def main() -> None:
    job = join()
    from torchtitan import train
    from torchtitan.trainer import Trainer

    run = Trainer.train
    Trainer.train = lambda trainer: run(trainer) if "train" in vars(trainer) else protect(trainer, job).train()
    train.main()


if __name__ == "__main__":
    main()
