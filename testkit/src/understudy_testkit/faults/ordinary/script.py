"""A training script as people write them, in many shapes: `-m understudy_testkit.faults.ordinary.script`.

Every shape is deterministic, so that a run with trouble can be compared with one without, bit for bit.
"""

import argparse
import ctypes
import hashlib
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss, softplus
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import understudy
from understudy_testkit.faults.ordinary.disturbing import Disturbance, Disturber

WIDTH = 8
Body = Callable[[understudy.Step], None]
Between = Callable[[understudy.Step], None]


class Made(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that are a function of their number."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(number))


def network(*, norm: bool = False) -> nn.Module:
    middle = [nn.BatchNorm1d(16)] if norm else []
    return nn.Sequential(nn.Linear(WIDTH, 16), *middle, nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, WIDTH))


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return mse_loss(model(batch), batch.roll(1, dims=1))


class Day:
    """A job, its disturbances, and the names by which shapes call them out."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.job = understudy.join(seed=7)
        planned = [Disturbance.parse(text) for text in options.disturb]
        self.disturb = Disturber(self.job.rank, planned, options.proofs, self._flip)
        self.model: nn.Module | None = None

    def _flip(self) -> None:
        """A bit in the middle of a fraction, in the bare memory, of which the engine knows nothing."""
        assert self.model is not None
        first = next(self.model.parameters())
        ctypes.c_uint32.from_address(first.data_ptr()).value ^= 1 << 12

    def batch(self, step: understudy.Step) -> torch.Tensor:
        if not step.rehearsing:
            self.disturb.at("loader", step.number)
        batch: torch.Tensor = step.batch()
        self.at("body", step)
        return batch

    def at(self, place: str, step: understudy.Step) -> None:
        if not step.rehearsing:
            self.disturb.at(place, step.number)

    def batches(self) -> understudy.Batches:
        return understudy.Batches(Made(), batch_size=4, seed=7)


def plain(day: Day, model: nn.Module | None = None, data: Any = None) -> tuple[Body, Between]:
    model = day.model = DistributedDataParallel(network()) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    day.job.protect(model=model, optimizer=optimizer, data=day.batches() if data is None else data)

    def body(step: understudy.Step) -> None:
        loss_of(model, day.batch(step)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        day.at("optimizer", step)
        optimizer.zero_grad()

    return body, _nothing


def _nothing(_step: understudy.Step) -> None:
    return


def sharded(day: Day) -> tuple[Body, Between]:
    """HSDP: two replicas of two shards."""
    model = network()
    mesh = init_device_mesh("cpu", (2, day.job.world_size // 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)
    return plain(day, model)


def batch_norm(day: Day) -> tuple[Body, Between]:
    return plain(day, DistributedDataParallel(network(norm=True)))


def local_batch_norm(day: Day) -> tuple[Body, Between]:
    return plain(day, DistributedDataParallel(network(norm=True), broadcast_buffers=False))


def workers(day: Day) -> tuple[Body, Between]:
    """Its own loader, with workers, prefetch and a sampler; epochs are told to the sampler."""
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(Made(), seed=3)
    loader = DataLoader(Made(), batch_size=4, sampler=sampler, num_workers=2, prefetch_factor=3, drop_last=True)
    body, _ = plain(day, data=loader)

    def with_epochs(step: understudy.Step) -> None:
        sampler.set_epoch(step.number // len(loader))
        body(step)

    return with_epochs, _nothing


def accumulating(day: Day) -> tuple[Body, Between]:
    """Several backward passes in one step."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    day.job.protect(model=model, optimizer=optimizer, data=day.batches())

    def body(step: understudy.Step) -> None:
        first, second = day.batch(step).chunk(2)
        with model.no_sync():
            (loss_of(model, first) / 2).backward()  # type: ignore[no-untyped-call]
        day.at("accumulation", step)
        (loss_of(model, second) / 2).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return body, _nothing


def accumulating_over_steps(day: Day) -> tuple[Body, Between]:
    """As one would port `if (i + 1) % 4 == 0: optimizer.step()`. It must be refused."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    day.job.protect(model=model, optimizer=optimizer, data=day.batches())

    def body(step: understudy.Step) -> None:
        loss_of(model, day.batch(step)).backward()  # type: ignore[no-untyped-call]
        if (step.number + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()

    return body, _nothing


def closure(day: Day) -> tuple[Body, Between]:
    model = DistributedDataParallel(network())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    day.job.protect(model=model, optimizer=optimizer, data=day.batches())

    def body(step: understudy.Step) -> None:
        batch = day.batch(step)

        def again() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            day.at("closure", step)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(again)  # type: ignore[no-untyped-call]

    return body, _nothing


def gan(day: Day) -> tuple[Body, Between]:
    """The usual order: discriminator, then generator, in one body."""
    return _discriminate_then_generate(day, *_two_networks(day))


def normed_gan(day: Day) -> tuple[Body, Between]:
    """With batch norm in both."""
    wrap = partial(DistributedDataParallel, broadcast_buffers=False)
    return _discriminate_then_generate(day, *_two_networks(day, wrap(network(norm=True)), wrap(network(norm=True))))


def sharded_gan(day: Day) -> tuple[Body, Between]:
    """Both networks in two replicas of two shards."""
    mesh = init_device_mesh("cpu", (2, day.job.world_size // 2), mesh_dim_names=("replicate", "shard"))
    maker, judge = network(), network()
    for model in (maker, judge):
        fully_shard(model, mesh=mesh)
    return _discriminate_then_generate(day, *_two_networks(day, maker, judge))


def _discriminate_then_generate(
    day: Day, maker: nn.Module, judge: nn.Module, of_maker: torch.optim.Optimizer, of_judge: torch.optim.Optimizer
) -> tuple[Body, Between]:
    def body(step: understudy.Step) -> None:
        real = day.batch(step)
        noise = torch.randn(4, WIDTH)
        of_judge.zero_grad()
        (softplus(-judge(real)).mean() + softplus(judge(maker(noise).detach())).mean()).backward()  # type: ignore[no-untyped-call]
        of_judge.step()
        day.at("between-optimizers", step)
        of_maker.zero_grad()
        softplus(-judge(maker(noise))).mean().backward()  # type: ignore[no-untyped-call]
        day.at("second-optimizer", step)
        of_maker.step()

    return body, _nothing


def alternating(day: Day) -> tuple[Body, Between]:
    """The discriminator in even steps, the generator in odd ones."""
    maker, judge, of_maker, of_judge = _two_networks(day)

    def body(step: understudy.Step) -> None:
        real = day.batch(step)
        noise = torch.randn(4, WIDTH)
        if step.number % 2 == 0:
            (softplus(-judge(real)).mean() + softplus(judge(maker(noise).detach())).mean()).backward()  # type: ignore[no-untyped-call]
            of_judge.step()
        else:
            softplus(-judge(maker(noise))).mean().backward()  # type: ignore[no-untyped-call]
            of_maker.step()
        of_maker.zero_grad()
        of_judge.zero_grad()

    return body, _nothing


def _two_networks(
    day: Day, maker: nn.Module | None = None, judge: nn.Module | None = None
) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer, torch.optim.Optimizer]:
    maker, judge = maker or DistributedDataParallel(network()), judge or DistributedDataParallel(network())
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3)
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
    day.job.protect(maker=maker, judge=judge, of_maker=of_maker, of_judge=of_judge, data=day.batches())
    return maker, judge, of_maker, of_judge


def scaler(day: Day) -> tuple[Body, Between]:
    """A gradient scaler whose first steps overflow, so that they are skipped."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaling = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=5)
    day.job.protect(model=model, optimizer=optimizer, scaler=scaling, data=day.batches())

    def body(step: understudy.Step) -> None:
        scaling.scale(loss_of(model, day.batch(step)) * 16).backward()  # type: ignore[no-untyped-call]
        scaling.step(optimizer)
        scaling.update()
        optimizer.zero_grad()

    return body, _nothing


def warm_up(day: Day) -> tuple[Body, Between]:
    """A learning rate that begins at 0."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 6))
    day.job.protect(model=model, optimizer=optimizer, scheduler=scheduler, data=day.batches())

    def body(step: understudy.Step) -> None:
        loss_of(model, day.batch(step)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    return body, _nothing


def recompiling(day: Day) -> tuple[Body, Between]:
    """The model is compiled, and compiled again in the middle."""
    model = network()
    model.compile(backend="aot_eager")
    body, _ = plain(day, DistributedDataParallel(model))

    def compile_again(step: understudy.Step) -> None:
        if step.number == 8:
            torch.compiler.reset()
        body(step)

    return compile_again, _nothing


def evaluating(day: Day) -> tuple[Body, Between]:
    """An evaluation between steps, in which ranks communicate, and a file that rank 0 writes."""
    model = DistributedDataParallel(network())
    body, _ = plain(day, model)
    held_out = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(1))

    def between(step: understudy.Step) -> None:
        if (step.number + 1) % 4:
            return
        with torch.no_grad():
            total = loss_of(model.module.eval(), held_out)
        model.train()  # type: ignore[no-untyped-call]
        day.disturb.at("evaluation", step.number)
        torch.distributed.all_reduce(total)
        day.disturb.at("second-collective", step.number)
        gathered = [torch.zeros_like(total) for _ in range(day.job.world_size)]
        torch.distributed.all_gather(gathered, total * (1 + day.job.rank))
        if day.options.proofs is not None:
            day.options.proofs.mkdir(parents=True, exist_ok=True)
            found = " ".join(str(one.item()) for one in (total, *gathered))
            (day.options.proofs / f"evaluation-{step.number}-{day.job.rank}.txt").write_text(found)
        day.disturb.at("after-evaluation", step.number)

    return body, between


def scheduled(day: Day) -> tuple[Body, Between]:
    """Between steps the learning rate and an average of the weights change, then ranks communicate, then the learning
    rate changes again."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    average = torch.optim.swa_utils.AveragedModel(model.module)
    day.job.protect(model=model, optimizer=optimizer, scheduler=scheduler, average=average, data=day.batches())

    def body(step: understudy.Step) -> None:
        loss = loss_of(model, day.batch(step)) + 0.01 * loss_of(average.module, day.batch(step)).detach()
        (loss * (1 + loss.detach())).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    def between(step: understudy.Step) -> None:
        if (step.number + 1) % 4:
            return
        scheduler.step()
        average.update_parameters(model.module)
        day.disturb.at("evaluation", step.number)
        torch.distributed.all_reduce(torch.ones(1))
        scheduler.step()
        day.disturb.at("after-evaluation", step.number)

    return body, between


def saving(day: Day) -> tuple[Body, Between]:
    """Rank 0 writes a checkpoint of its own between steps."""
    model = DistributedDataParallel(network())
    body, _ = plain(day, model)

    def between(step: understudy.Step) -> None:
        if day.job.rank == 0 and (step.number + 1) % 4 == 0 and day.options.proofs is not None:
            day.disturb.at("saving", step.number)
            day.options.proofs.mkdir(parents=True, exist_ok=True)
            torch.save(model.state_dict(), day.options.proofs / "best.pt")

    return body, between


def threads(day: Day) -> tuple[Body, Between]:
    """Threads that open and close connections of their own all the time."""
    served = ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    threading.Thread(target=served.serve_forever, daemon=True).start()

    def ask() -> None:
        while True:
            with urllib.request.urlopen(f"http://127.0.0.1:{served.server_address[1]}/") as answer:
                answer.read()
            time.sleep(0.002)

    for _ in range(2):
        threading.Thread(target=ask, daemon=True).start()
    return plain(day)


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: Any) -> None:
        return


def resuming(day: Day) -> tuple[Body, Between]:
    """It goes on from the newest checkpoint of its own, which a replacement finds newer than the others did."""
    assert day.options.proofs is not None
    newest = day.options.proofs / "newest"
    begin = int(newest.read_text()) if newest.exists() else 0
    day.options.steps -= begin
    body, _ = plain(day)

    def between(step: understudy.Step) -> None:
        if day.job.rank == 0 and (step.number + 1) % 4 == 0:
            newest.parent.mkdir(parents=True, exist_ok=True)
            newest.write_text(str(begin + step.number + 1))

    return body, between


def raising(day: Day) -> tuple[Body, Between]:
    body, _ = plain(day)

    def raise_later(step: understudy.Step) -> None:
        body(step)
        if step.number == 6:
            raise ValueError("a mistake of the script")

    return raise_later, _nothing


def wrong_shapes(day: Day) -> tuple[Body, Between]:
    body, _ = plain(day, DistributedDataParallel(nn.Linear(WIDTH + 1, WIDTH)))
    return body, _nothing


def without_with(day: Day) -> tuple[Body, Between]:
    body, _ = plain(day)
    day.options.bare = True
    return body, _nothing


def initialising(day: Day) -> tuple[Body, Between]:
    """It makes a default group although `join` has made one."""
    torch.distributed.init_process_group("gloo")
    return plain(day)


SHAPES: dict[str, Callable[[Day], tuple[Body, Between]]] = {
    "plain": plain,
    "sharded": sharded,
    "batch-norm": batch_norm,
    "local-batch-norm": local_batch_norm,
    "workers": workers,
    "accumulating": accumulating,
    "accumulating-over-steps": accumulating_over_steps,
    "closure": closure,
    "gan": gan,
    "normed-gan": normed_gan,
    "sharded-gan": sharded_gan,
    "alternating": alternating,
    "scaler": scaler,
    "warm-up": warm_up,
    "recompiling": recompiling,
    "evaluating": evaluating,
    "scheduled": scheduled,
    "saving": saving,
    "threads": threads,
    "resuming": resuming,
    "raising": raising,
    "wrong-shapes": wrong_shapes,
    "without-with": without_with,
    "initialising": initialising,
}


@contextmanager
def _bare(_step: understudy.Step) -> Iterator[None]:
    yield


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="plain")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--step-time", type=float, default=0.02, help="seconds that a body takes at least")
    parser.add_argument("--disturb", nargs="*", default=[], help="see understudy_testkit.faults.ordinary.disturbing")
    parser.add_argument("--proofs", type=Path, help="where disturbances leave their proofs")
    options = parser.parse_args()
    options.bare = False
    torch.set_num_threads(1)
    day = Day(options)
    body, between = SHAPES[options.shape](day)
    for step in day.job.steps(options.steps):
        with _bare(step) if options.bare else step:
            time.sleep(options.step_time)
            body(step)
        if step.committed:
            day.disturb.at("between", step.number)
            between(step)
    if day.model is not None and options.shape != "sharded":
        content = b"".join(tensor.detach().numpy().tobytes() for tensor in day.model.state_dict().values())
        print(f"final {day.job.rank} {hashlib.sha256(content).hexdigest()}", flush=True)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
