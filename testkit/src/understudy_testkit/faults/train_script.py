"""The small training script that claims and tests run and kill: `-m understudy_testkit.faults.train_script`.

A residual network with dropout on made-up data, spread over the ranks in one of many ways. Everything in it is
deterministic, so two runs can be compared bit for bit.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import understudy
from understudy.foundation.settings import WorkerSettings
from understudy.state.protected_state import local
from understudy_testkit import queued_device
from understudy_testkit.faults import parallelisms
from understudy_testkit.faults.catalogue import load_schedule
from understudy_testkit.faults.injector import Injector
from understudy_testkit.faults.parallelisms import Block, Trained
from understudy_testkit.queued_device import plugins
from understudy_testkit.queued_device.mutants import MUTANTS

MODES = (
    *("ddp", "ddp-static", "hsdp", "fsdp", "tp-dp", "fsdp-tp", "ep-dp"),
    *("pp-dp-gpipe", "pp-dp-1f1b", "pp-dp-interleaved", "pp-tp-dp"),
)


class Made(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that are a function of their number."""

    def __init__(self, size: int, width: int) -> None:
        self._size, self._width = size, width

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.randn(self._width, generator=torch.Generator().manual_seed(number))


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="ddp")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=2, help="of hsdp; each is sharded over equally many ranks")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--double", action="store_true", help="everything in float64")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to sleep after each step (between steps)")
    parser.add_argument("--pause-until", type=Path, help="no pause any more once this file exists")
    parser.add_argument("--recompute", action="store_true", help="activation checkpointing")
    parser.add_argument("--compile", action="store_true", help="torch.compile every block")
    parser.add_argument("--bf16", action="store_true", help="bf16 autocast")
    parser.add_argument("--save-load", action="store_true", help="protect nothing but functions that save and load")
    parser.add_argument("--fast", action="store_true", help="fused optimizer and bucket views, as one would for speed")
    parser.add_argument(
        "--device", choices=("cpu", "queued", "cuda"), default="cpu", help="queued: an emulated accelerator"
    )
    parser.add_argument("--fence", choices=("host", "device"), default="host", help="who waits at the fence")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="leave out what the product does for such a device")
    parser.add_argument("--slow-queue", type=float, default=0.0, help="seconds before each operation of the device")
    parser.add_argument("--slow-batches", type=float, default=0.0, help="seconds behind the begin of a batch")
    parser.add_argument("--faults", type=Path, help="a schedule, see understudy_testkit.faults.catalogue")
    parser.add_argument("--proofs", type=Path, help="where faults leave their proofs")
    parser.add_argument("--gate", type=Path, help="a file with the number of the last step that may begin")
    parser.add_argument("--ending", type=Path, help="a folder in which every rank says how it ended")
    parser.add_argument("--times", type=Path, help="rank 0 writes when it committed each step, and its CPU time then")
    parser.add_argument("--keep", type=Path, help="every rank leaves its parameters and learning rates in this folder")
    parser.add_argument(
        "--keep-after", type=int, nargs="*", default=[], help="steps after which it does, besides the last"
    )
    parser.add_argument("--turns", type=Path, help="take turns with another job; the baton files are in this folder")
    parser.add_argument("--second", action="store_true", help="the other job has the first turn")
    parser.add_argument("--turn-length", type=int, default=10, help="steps per turn")
    return parser.parse_args(given)


def build(options: argparse.Namespace) -> nn.Sequential:
    """The bare model. It needs no rank, so it is built before join(): a spare has done it before it is needed."""
    torch.manual_seed(7)
    blocks = nn.Sequential(*[Block(options.width, options.recompute, options.dropout) for _ in range(options.blocks)])
    return nn.Sequential(blocks, nn.Linear(options.width, options.width))


def join(options: argparse.Namespace) -> understudy.Job:
    if options.device == "cpu":
        return understudy.join(seed=7)
    if options.mutant:
        MUTANTS[options.mutant]()
    if options.device == "cuda":  # untested: no GPU was at hand
        torch.use_deterministic_algorithms(True)
        return understudy.join(seed=7, backend="nccl", fence=options.fence)
    plugins.register()
    if WorkerSettings.from_environment() is None:  # under torchrun nothing of ours takes the device
        queued_device.install()
    job = understudy.join(seed=7, backend=options.device, fence=options.fence)
    queued_device.installed().stream.slow_down(options.slow_queue)
    if options.slow_batches:
        parallelisms.slow_down_batches(options.slow_batches)
    return job


def spread(bare: nn.Sequential, options: argparse.Namespace) -> Trained:
    """Over the ranks, in the way that `--mode` names."""
    match options.mode:
        case "ddp":
            return parallelisms.ddp(bare, options.fast)
        case "ddp-static":
            return parallelisms.ddp_static(bare)
        case "hsdp":
            return parallelisms.hsdp(bare, options.replicas)
        case "fsdp":
            return parallelisms.fsdp(bare)
        case "tp-dp":
            return parallelisms.tensor_and_data(bare)
        case "fsdp-tp":
            return parallelisms.sharded_and_tensor(bare)
        case "ep-dp":
            return parallelisms.experts_and_data(bare, options.width)
        case "pp-tp-dp":
            return parallelisms.pipeline_and_data(bare, "1f1b", tensor=True)
        case _:
            return parallelisms.pipeline_and_data(bare, options.mode.removeprefix("pp-dp-"))


def make_optimizer(model: nn.Module, options: argparse.Namespace) -> torch.optim.Optimizer:
    """Two parameter groups, so that a fault can strike between their updates. A fused one takes one kind at a time."""
    parameters = list(model.parameters())
    if options.fast:
        parameters.sort(key=lambda one: isinstance(one, DTensor))
    first = sum(not isinstance(one, DTensor) for one in parameters) if options.fast else 0
    half = first if 0 < first < len(parameters) else len(parameters) // 2
    groups = [{"params": parameters[:half]}, {"params": parameters[half:]}]
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9, fused=options.fast)
    return torch.optim.AdamW(groups, lr=1e-3, fused=options.fast)


def make_scheduler(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + 0.01 * step))


def make_data(options: argparse.Namespace) -> understudy.Batches:
    return understudy.Batches(Made(4096, options.width), batch_size=options.batch_size, seed=7)


def keep(options: argparse.Namespace, step: int, rank: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What this rank holds after a step, for comparing runs."""
    parameters = {name: local(parameter).detach() for name, parameter in model.named_parameters()}
    options.keep.mkdir(parents=True, exist_ok=True)
    kept = options.keep / f"after-{step}-rank{rank}.pt"
    torch.save({"parameters": parameters, "rates": [group["lr"] for group in optimizer.param_groups]}, f"{kept}.new")
    os.replace(f"{kept}.new", kept)  # a rank may be killed at any time


def protect_functions(job: understudy.Job, data: understudy.Batches, parts: dict[str, Any]) -> None:
    """As a framework would that offers nothing else."""

    def save(path: Path) -> None:
        torch.save({name: part.state_dict() for name, part in parts.items()}, path)

    def load(path: Path) -> None:
        for name, state in torch.load(path, weights_only=True).items():
            parts[name].load_state_dict(state)

    job.protect(save=save, load=load, data=data)


def take_turns(options: argparse.Namespace, step: int, rank: int) -> None:
    """Called after each step. At the end of a turn, pass the baton on and sleep until it comes back.

    The first turn is run without it and shows that we are ready. Even batons are for one job, odd ones for the other.
    """
    if (step + 1) % options.turn_length:
        return
    turn = (step + 1) // options.turn_length
    if rank == 0 and turn == 1:
        (options.turns / f"ready.{int(options.second)}").touch()
    elif rank == 0:
        (options.turns / f"baton.{2 * (turn - 2) + options.second + 1}").touch()
    mine = options.turns / f"baton.{2 * (turn - 1) + options.second}"
    while step + 1 < options.steps and not mine.exists():
        time.sleep(0.01)


def write_ending(folder: Path, rank: int, model: nn.Module, loss: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    finite = all(bool(torch.isfinite(local(parameter)).all()) for parameter in model.parameters())
    (folder / f"rank-{rank}.json").write_text(json.dumps({"loss": loss, "finite": finite}))


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    if options.double:
        torch.set_default_dtype(torch.float64)
    bare = build(options)
    if options.compile:
        for place, block in enumerate(bare[0].children()):
            if place != options.blocks // 2:  # faults strike there, and a hook cannot be compiled
                block.compile(backend="aot_eager")
    job = join(options)
    trained = spread(bare.to(job.device), options)
    optimizer = make_optimizer(trained.model, options)
    scheduler = make_scheduler(optimizer)
    injector = None
    if options.faults:
        injector = Injector(job, load_schedule(options.faults), options.proofs, options.gate)
        injector.arm(trained.struck, optimizer)
    data = make_data(options)
    if options.save_load:
        protect_functions(job, data, {"model": trained.model, "optimizer": optimizer, "scheduler": scheduler})
    else:
        job.protect(model=trained.model, optimizer=optimizer, data=data, scheduler=scheduler, share=trained.share)
    last_loss = float("nan")

    def note_loss(_model: nn.Module, _input: object, output: torch.Tensor) -> None:
        nonlocal last_loss
        last_loss = parallelisms.loss_of(output.detach()).item()

    if options.ending:
        trained.model.register_forward_hook(note_loss)
    steps = job.steps(options.steps)
    times: dict[str, list[float]] = {"commits": [], "cpu": []}
    for step in injector.watch(steps) if injector else steps:
        with step:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.bf16):
                trained.run(step.batch().to(job.device))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if step.committed:
            times["commits"].append(time.monotonic())
            times["cpu"].append(time.process_time())
            if options.keep and step.number in (*options.keep_after, options.steps - 1):
                keep(options, step.number, job.rank, trained.model, optimizer)
            if options.pause and not (options.pause_until and options.pause_until.exists()):
                time.sleep(options.pause)
            if options.turns:
                take_turns(options, step.number, job.rank)
    if options.times and job.rank == 0:
        options.times.write_text(json.dumps(times))
    if options.ending:
        write_ending(options.ending, job.rank, trained.model, last_loss)
    # Taking torch's modules apart takes longer than most of these runs; nothing below is of use to a test.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
