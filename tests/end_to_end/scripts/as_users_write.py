"""A script with everything that scripts do: setup that talks, groups by hand (one of them silent), two optimizers,
accumulation, clipping, a scaler that skips a step, schedulers, an average of the weights. It can hurt itself.

`as_users_write.py FOLDER [--kill-at STEP --in PLACE] [--tracked] [--loader]`. Four ranks: ranks 0 and 1 hold the two
halves of a layer, ranks 2 and 3 the same for other samples.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.testing._internal.distributed import fake_pg

import understudy

STEPS, WIDTH, SAMPLES, SKIPPED = 12, 8, 6, 4
assert fake_pg  # makes torch's backend without peers known

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--kill-at", type=int)
parser.add_argument("--in", dest="place", default="forward", choices=("forward", "reduction", "between-optimizers"))
parser.add_argument("--tracked", action="store_true", help="the random streams are the script's own")
parser.add_argument("--loader", action="store_true", help="a loader that knows its position, with a worker process")
options = parser.parse_args()


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(number))


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(_context, x, group):  # type: ignore[no-untyped-def]
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(_context, gradient):  # type: ignore[no-untyped-def]
        return gradient, None


class Halved(nn.Module):
    """A layer whose inner half is on another rank. (Groups are no attributes: the average copies the model.)"""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _Sum.apply(self.down(torch.tanh(self.up(x))), own_halves)
        dropped: torch.Tensor = self.drop(y)
        return x + dropped


def kill_once(step: Any, place: str) -> None:
    proof = options.folder / "killed"
    if step.rehearsing or options.kill_at != step.number or options.place != place or job.rank != 3 or proof.exists():
        return
    proof.touch()
    os.kill(os.getpid(), signal.SIGKILL)


def make_data() -> Any:
    if not options.loader:
        return understudy.Batches(Samples(), batch_size=SAMPLES, seed=5)
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    sampler = StatefulDistributedSampler(Samples(), num_replicas=2, rank=replica, shuffle=True, seed=5)
    return StatefulDataLoader(Samples(), batch_size=SAMPLES, sampler=sampler, num_workers=1, drop_last=True)


torch.set_num_threads(1)
job = understudy.join(seed=3, rng="tracked" if options.tracked else "derived")

# Setup that talks: a configuration from rank 0, a roll call, a seed, groups by hand, weights from a peer.
told: list[Any] = [{"rate": 0.01, "clip": 0.5}] if job.rank == 0 else [None]
dist.broadcast_object_list(told, src=0)
present: list[Any] = [None] * job.world_size
dist.all_gather_object(present, {"rank": job.rank})
assert [entry["rank"] for entry in present] == list(range(job.world_size)), present
seed = torch.tensor([1234 if job.rank == 0 else 0])
dist.broadcast(seed, src=0)
halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
silent: list[Any] = [dist.new_group([rank], backend="fake") for rank in range(job.world_size)]  # a dimension not in use
assert dist.get_backend(silent[job.rank]) == "fake"
dist.barrier()
replica, half = divmod(job.rank, 2)
own_halves: Any = halves[replica]
own_replicas: Any = replicas[half]

torch.manual_seed(int(seed) + half)
layer = Halved()
torch.manual_seed(int(seed))
head = nn.Linear(WIDTH, WIDTH)
model = nn.Sequential(layer, head)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]
first = torch.optim.AdamW(layer.parameters(), lr=told[0]["rate"])
second = torch.optim.SGD(head.parameters(), lr=told[0]["rate"], momentum=0.9)
schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97) for optimizer in (first, second)]
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
if options.tracked:
    torch.manual_seed(int(seed) + replica)  # both halves drop the same values
job.protect(
    model=model,
    first=first,
    second=second,
    average=average,
    schedule_of_first=schedules[0],
    schedule_of_second=schedules[1],
    scaler=scaler,
    data=make_data(),
    share=(replica, 2),
)

for step in job.steps(STEPS):
    with step:
        kill_once(step, "forward")
        for part in step.batch().chunk(2):  # gradients are accumulated
            loss = model(part).square().mean()
            if step.number == SKIPPED:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
        kill_once(step, "reduction")
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=own_replicas)
        for optimizer in (first, second):
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(layer.parameters(), told[0]["clip"])
        scaler.step(first)
        kill_once(step, "between-optimizers")
        scaler.step(second)
        scaler.update()
        for schedule in schedules:
            schedule.step()
        average.update_parameters(model)
        for optimizer in (first, second):
            optimizer.zero_grad()
    if step.committed and job.rank == 0:
        print(f"step {step.number} scale {scaler.get_scale():g} rate {first.param_groups[0]['lr']:.6f}", flush=True)
