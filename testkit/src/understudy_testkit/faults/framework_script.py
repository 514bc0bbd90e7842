"""Runs an example of a framework as it is, in a worker, with faults: the example's calls of its adapter arm them.

`framework_script.py FRAMEWORK EXAMPLE --proofs FOLDER [--kill PLACE:STEP:RANK ...] [--shard] -- ARGUMENTS`. Places:
forward, backward, optimizer (behind the fence, before the update), after (it), log, evaluation, saving; with Accelerate
also gathering (in an evaluation) and epoch (when the next one begins); with DeepSpeed and Megatron-core also
accumulation, reduction, clip and gathered; with Ray Train also host (`ray_on_loopback`). STEP says how many are behind
it. A kill waits until a spare is warm, and leaves a proof. `--shard`: Accelerate takes FSDP on CPUs too (`fsdp_on_cpu`,
a shim). torchtitan takes CPUs only by `titan_on_cpu`, a shim as well, and Megatron-core by `megatron_on_cpu`.
`--times FOLDER`: each rank writes down when each of its optimizer steps was over. `--work COUNT`: each step multiplies
so many more matrices, because these models are toys. `--bare`: the adapter does nothing, for a run under torchrun.
"""

import argparse
import atexit
import importlib
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from understudy.detection.progress import Place
from understudy.foundation.parenthood import children_of
from understudy.training.audit import optimizers_within
from understudy_testkit.faults import fsdp_on_cpu, megatron_on_cpu, titan_on_cpu
from understudy_testkit.faults.watching import look, page_of

_PATIENCE = 120.0  # seconds until a spare is warm
_SIDE = 512  # of a matrix that is multiplied to make a step longer

Hurt = Callable[[str], None]


class Kills:
    """`wanted`: as PLACE:STEP:RANK. `is_real`: false in a rehearsal. `step`: how many are trained."""

    def __init__(
        self, wanted: list[str], proofs: Path, rank: int, is_real: Callable[[], bool], step: Callable[[], int]
    ) -> None:
        self._wanted, self._proofs, self._rank = wanted, proofs, rank
        self._is_real, self._step = is_real, step

    def hurt(self, place: str) -> None:
        fault = f"{place}:{self._step()}:{self._rank}"
        proof = self._proofs / fault
        if fault not in self._wanted or not self._is_real() or proof.exists():
            return
        deadline = time.monotonic() + _PATIENCE
        while not self.ready(place) and time.monotonic() < deadline:
            time.sleep(0.05)
        proof.touch()
        self.strike(place)

    def ready(self, _place: str) -> bool:
        """A spare is warm. The agent is the parent of this process, and of all spares."""
        found = [page_of(pid) for pid in children_of(os.getppid())]
        pages = [page for page in found if page is not None and os.path.exists(page)]
        return any(look(page).place is Place.PARKED for page in pages)

    def strike(self, _place: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def arm_hugging_face(wanted: list[str], proofs: Path) -> None:
    from understudy.integrations import hugging_face

    protect = hugging_face.protect

    def armed(trainer: Any, job: Any) -> Any:
        protect(trainer, job)
        kills = Kills(wanted, proofs, job.rank, lambda: job.window.is_real, lambda: trainer.state.global_step)
        arm_trainer(trainer, kills.hurt)
        return trainer

    hugging_face.protect = armed


def arm_trainer(trainer: Any, hurt: Hurt) -> None:
    """Inside of what the adapter has wrapped, as the script's own code would be."""
    trainer.model.register_forward_pre_hook(lambda module, *_: hurt("forward") if module.training else None)
    parameter = next(trainer.model.parameters())
    gradients = trainer.accelerator.gradient_state
    parameter.register_hook(lambda _: hurt("backward") if gradients.sync_gradients else None)
    if trainer.is_fsdp_enabled:  # its parameters become others, whose gradients autograd does not know
        trainer.model.register_forward_hook(lambda *called: _before_gradients(called[-1], gradients, hurt))
    prepare = trainer._prepare_for_training

    def prepared(*args: Any, **kwargs: Any) -> Any:
        result = prepare(*args, **kwargs)
        trainer.optimizer.optimizer.register_step_pre_hook(lambda *_: hurt("optimizer"))
        trainer.optimizer.optimizer.register_step_post_hook(lambda *_: hurt("after"))
        return result

    trainer._prepare_for_training = prepared
    for name, place in (("log", "log"), ("prediction_step", "evaluation"), ("_save_optimizer_and_scheduler", "saving")):
        setattr(trainer, name, _before(getattr(trainer, name), place, hurt))


def arm_accelerate(wanted: list[str], proofs: Path) -> None:
    from understudy.integrations import accelerate

    protect = accelerate.protect

    def armed(accelerator: Any, job: Any, loader: Any, compute: Any, model: Any) -> Any:
        progress = accelerator._custom_objects[0]
        kills = Kills(wanted, proofs, job.rank, lambda: job.window.is_real, lambda: progress.steps)
        arm_accelerator(accelerator, model, kills.hurt)
        return protect(accelerator, job, loader, compute, model)

    accelerate.protect = armed


def arm_accelerator(accelerator: Any, model: Any, hurt: Hurt) -> None:
    """Inside of what the adapter will wrap, as the script's own code would be."""
    optimizer, gradients = accelerator._optimizers[0].optimizer, accelerator.gradient_state
    parameter = next(model.parameters())
    model.register_forward_pre_hook(lambda module, *_: hurt("forward" if module.training else "evaluation"))
    parameter.register_hook(lambda _: hurt("backward") if gradients.sync_gradients else None)
    optimizer.register_step_pre_hook(lambda *_: hurt("optimizer"))
    optimizer.register_step_post_hook(lambda *_: hurt("after"))
    for owner, name, place in (
        (accelerator._schedulers[0], "get_last_lr", "log"),
        (accelerator, "gather_for_metrics", "gathering"),
        (accelerator, "get_state_dict", "saving"),
        (accelerator._dataloaders[0], "set_epoch", "epoch"),
    ):
        setattr(owner, name, _before(getattr(owner, name), place, hurt))


def _before_gradients(output: Any, gradients: Any, hurt: Hurt) -> None:
    if output.loss.requires_grad:
        output.loss.register_hook(lambda _: hurt("backward") if gradients.sync_gradients else None)


def arm_datasets(wanted: list[str], proofs: Path) -> None:
    """A loop of the script's own, over the job's steps or over windows: no adapter."""
    from understudy.training.job import Job

    protect = Job.protect

    def armed(job: Any, **things: Any) -> None:
        protect(job, **things)
        kills = kills_by_step(wanted, proofs, job)
        if "data" not in things:
            kills = Kills(wanted, proofs, job.rank, lambda: job.window.is_real, lambda: job._member.status.holds or 0)
        arm_plain(things["model"], things["optimizer"], kills.hurt)

    Job.protect = armed  # type: ignore[method-assign, assignment]


def arm_plain(model: Any, optimizer: Any, hurt: Hurt) -> None:
    model.register_forward_pre_hook(lambda *_: hurt("forward"))
    next(model.parameters()).register_hook(lambda _: hurt("backward"))
    optimizer.register_step_pre_hook(lambda *_: hurt("optimizer"))


def arm_deepspeed(wanted: list[str], proofs: Path) -> None:
    from understudy.integrations import deepspeed

    protect = deepspeed.protect

    def armed(engine: Any, job: Any, data: Any = None, **others: Any) -> Any:
        protect(engine, job, data, **others)
        arm_engine(engine, kills_by_step(wanted, proofs, job).hurt)
        return engine

    deepspeed.protect = armed


def kills_by_step(wanted: list[str], proofs: Path, job: Any, kind: type[Kills] = Kills) -> Kills:
    """For a loop over the job's steps."""
    now = SimpleNamespace(number=-1, rehearsing=True)
    steps = job._steps

    def watched(total: int) -> Any:
        for step in steps(total):
            vars(now).update(number=step.number, rehearsing=step.rehearsing)
            yield step

    job._steps = watched
    return kind(wanted, proofs, job.rank, lambda: not now.rehearsing, lambda: now.number)


def arm_ray(wanted: list[str], proofs: Path) -> None:
    from understudy_testkit.faults import ray_on_loopback  # by its name: what it has goes to workers of Ray's

    ray_on_loopback.arm(wanted, proofs)


def arm_fabric(wanted: list[str], proofs: Path) -> None:
    from understudy.integrations import fabric

    protect = fabric.protect

    def armed(owner: Any, job: Any, *things: Any, **others: Any) -> Any:
        protect(owner, job, *things, **others)
        model, optimizer = things
        arm_fabric_loop(owner, model, optimizer.optimizer, kills_by_step(wanted, proofs, job).hurt)
        return owner

    fabric.protect = armed  # type: ignore[assignment]


def arm_fabric_loop(fabric: Any, model: Any, optimizer: Any, hurt: Hurt) -> None:
    """Inside of what the adapter has wrapped, as the script's own code would be."""
    network, strategy = model._forward_module, fabric.strategy
    network.register_forward_pre_hook(lambda module, *_: hurt("forward" if module.training else "evaluation"))
    parameter = next(network.parameters())
    parameter.register_hook(lambda _: hurt("backward" if network.require_backward_grad_sync else "accumulation"))
    optimizer.register_step_pre_hook(lambda *_: hurt("optimizer"))
    optimizer.register_step_post_hook(lambda *_: hurt("after"))
    for name, place in (("clip_gradients_norm", "clip"), ("all_reduce", "reduction"), ("save_checkpoint", "saving")):
        setattr(strategy, name, _before(getattr(strategy, name), place, hurt))


def arm_engine(engine: Any, hurt: Hurt) -> None:
    """Inside of what the adapter has wrapped, as DeepSpeed's own code would be."""
    optimizer = engine.optimizer.optimizer
    engine.module.register_forward_pre_hook(lambda *_: hurt("forward" if torch.is_grad_enabled() else "evaluation"))
    first = next(engine.module.parameters())
    first.register_hook(lambda _: hurt("backward" if engine.is_gradient_accumulation_boundary() else "accumulation"))
    optimizer.register_step_pre_hook(lambda *_: hurt("optimizer"))
    optimizer.register_step_post_hook(lambda *_: hurt("after"))
    for owner, name, place in (
        (engine.optimizer, "reduce_ipg_grads", "reduction"),
        (engine.optimizer, "scaled_global_norm", "clip"),
        (engine.optimizer, "_update_model_bit16_weights", "gathered"),
        (engine, "_save_checkpoint", "saving"),
    ):
        setattr(owner, name, _before(getattr(owner, name), place, hurt))


def arm_megatron(wanted: list[str], proofs: Path) -> None:
    from understudy.integrations import megatron

    protect = megatron.protect

    def armed(job: Any, model: Any, optimizer: Any, *rest: Any, **others: Any) -> None:
        protect(job, model, optimizer, *rest, **others)
        arm_megatron_core(model, optimizer, kills_by_step(wanted, proofs, job).hurt)

    megatron.protect = armed


def arm_megatron_core(model: Any, optimizer: Any, hurt: Hurt) -> None:
    """Inside of what the adapter has wrapped, as Megatron's own code would be."""
    [part], [group, *_] = optimizer.chained_optimizers, model.bucket_groups
    model.register_forward_pre_hook(lambda *_: hurt("forward" if model.training else "evaluation"))
    layer = model.module.decoder.layers[0]
    layer.register_full_backward_pre_hook(lambda *_: hurt("backward" if group.is_last_microbatch else "accumulation"))
    part.optimizer.register_step_pre_hook(lambda *_: hurt("optimizer"))
    part.optimizer.register_step_post_hook(lambda *_: hurt("after"))
    for owner, name, place in (
        (model, "finish_grad_sync", "reduction"),
        (optimizer, "get_grad_norm", "clip"),
        (optimizer, "state_dict", "saving"),
        (optimizer, "save_parameter_state", "saving"),
        (model, "start_param_sync", "gathered"),
    ):
        setattr(owner, name, _before(getattr(owner, name), place, hurt))


def arm_lightning(wanted: list[str], proofs: Path) -> None:
    from understudy.integrations import lightning

    protect = lightning.protect

    def armed(trainer: Any, job: Any) -> Any:
        protect(trainer, job)
        kills = Kills(wanted, proofs, job.rank, lambda: job.window.is_real, lambda: trainer.global_step)
        trainer.callbacks.append(_lightning_callback(kills.hurt))
        return trainer

    lightning.protect = armed


def _lightning_callback(hurt: Hurt) -> Any:
    """As a callback of the user's would hurt."""
    from lightning.pytorch import Callback

    class Faults(Callback):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, module: Any) -> None:
            network, optimizer = trainer.strategy.model, trainer.optimizers[0]
            network.register_forward_pre_hook(lambda *_: hurt("forward") if module.training else None)
            next(module.parameters()).register_hook(
                lambda _: hurt("backward") if network.require_backward_grad_sync else None
            )
            optimizer.register_step_pre_hook(lambda *_: hurt("optimizer"))
            optimizer.register_step_post_hook(lambda *_: hurt("after"))

        def on_before_optimizer_step(self, *_: Any) -> None:
            hurt("clip")

        def on_train_batch_end(self, *_: Any) -> None:
            hurt("log")

        def on_validation_batch_end(self, *_: Any) -> None:
            hurt("evaluation")

        def on_save_checkpoint(self, *_: Any) -> None:
            hurt("saving")

        def on_train_epoch_end(self, *_: Any) -> None:
            hurt("epoch")

    return Faults()


def arm_torchtitan(wanted: list[str], proofs: Path) -> None:
    from understudy.integrations import torchtitan

    protect = torchtitan.protect

    def armed(trainer: Any, job: Any) -> Any:
        kills = Kills(wanted, proofs, job.rank, lambda: job.window.is_real, lambda: trainer.step - 1)
        arm_titan(trainer, kills.hurt)
        return protect(trainer, job)

    torchtitan.protect = armed


def arm_titan(trainer: Any, hurt: Hurt) -> None:
    """Inside of what the adapter will wrap, as torchtitan's own code would be."""
    from torchtitan.distributed import utils

    [model], [optimizer] = trainer.model_parts, trainer.optimizers.optimizers
    model.register_forward_pre_hook(lambda module, *_: hurt("forward" if module.training else "evaluation"))
    model.layers["0"].register_full_backward_pre_hook(lambda *_: hurt("backward"))
    optimizer.register_step_pre_hook(lambda *_: hurt("optimizer"))
    optimizer.register_step_post_hook(lambda *_: hurt("after"))
    for owner, name, place in (
        (utils, "clip_grad_norm_", "clip"),
        (utils, "dist_max", "log"),
        (trainer.checkpointer, "dcp_save", "saving"),
    ):
        setattr(owner, name, _before(getattr(owner, name), place, hurt))


def _before(function: Callable[..., Any], place: str, hurt: Hurt) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        hurt(place)
        return function(*args, **kwargs)

    return run


def strip(framework: str) -> None:
    """As if the example did not name Understudy. A loop over the steps of a job needs no `understudy run`."""
    if framework in ("datasets", "fabric"):
        return
    adapter: Any = importlib.import_module(f"understudy.integrations.{framework}")
    if framework == "megatron":
        adapter.protect = lambda job, *_, **others: job.protect(**others)
        return
    if framework == "deepspeed":
        adapter.protect = lambda engine, job, data: job.protect(
            data=data, batches_per_step=engine.gradient_accumulation_steps()
        )
        return
    nothing = SimpleNamespace(rank=int(os.environ["RANK"]), section=lambda _name: lambda function: function)
    adapter.join = lambda: _gloo() if framework == "torchtitan" else nothing  # the others make groups themselves
    adapter.protect = lambda thing, _job, *rest: (range, *rest[:2]) if framework == "accelerate" else thing


def _gloo() -> None:
    """What torchtitan's `init_distributed` would do, and what it does behind the first step, but for a CPU."""
    from torchtitan.distributed import utils

    torch.distributed.init_process_group("gloo")
    torch.autograd.set_multithreading_enabled(False)
    utils.set_pg_timeouts = lambda **_: None


def write_times(folder: Path, work: int) -> None:
    times, matrix = list[float](), torch.ones(_SIDE, _SIDE)

    def note(optimizer: Any, *_: Any) -> None:
        if not optimizers_within(optimizer):
            times.append(time.monotonic())
            for _number in range(work):
                torch.mm(matrix, matrix)

    register_optimizer_step_post_hook(note)
    folder.mkdir(parents=True, exist_ok=True)
    atexit.register(lambda: (folder / os.environ["RANK"]).write_text(json.dumps(times)))


_ARMS = {
    "accelerate": arm_accelerate,
    "datasets": arm_datasets,
    "deepspeed": arm_deepspeed,
    "fabric": arm_fabric,
    "hugging_face": arm_hugging_face,
    "lightning": arm_lightning,
    "megatron": arm_megatron,
    "ray": arm_ray,
    "torchtitan": arm_torchtitan,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=sorted(_ARMS))
    parser.add_argument("example")
    parser.add_argument("--proofs", type=Path, required=True)
    parser.add_argument("--kill", nargs="*", default=[])
    parser.add_argument("--shard", action="store_true")
    parser.add_argument("--times", type=Path)
    parser.add_argument("--work", type=int, default=0)
    parser.add_argument("--bare", action="store_true")
    own = sys.argv[1 : sys.argv.index("--")]
    options = parser.parse_args(own)
    options.proofs.mkdir(parents=True, exist_ok=True)
    if options.shard:
        fsdp_on_cpu.allow()
    if options.framework == "torchtitan":
        titan_on_cpu.allow()
    if options.framework == "megatron":
        megatron_on_cpu.allow()
    if options.times is not None:
        write_times(options.times, options.work)
    if options.bare:
        strip(options.framework)
    else:
        _ARMS[options.framework](options.kill, options.proofs)
    sys.argv = [options.example, *sys.argv[sys.argv.index("--") + 1 :]]
    runpy.run_path(options.example, run_name="__main__")


if __name__ == "__main__":
    main()
