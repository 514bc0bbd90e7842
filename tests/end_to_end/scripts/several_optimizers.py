"""Bodies that compute on after an optimizer has stepped: `several_optimizers.py FOLDER BODY [PLACE]`.

Rank 1 is killed once in step 5, at PLACE.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import understudy

folder, body = Path(sys.argv[1]), sys.argv[2]
struck = sys.argv[3] if len(sys.argv) > 3 else ""
WIDTH, STEPS, FATAL = 6, 9, 5


def batch_of(step: int, rank: int, _world_size: int) -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def network(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh(), nn.Linear(WIDTH, outputs))


class Script:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(3)
        first, second = network(1), network(WIDTH)
        self.job = understudy.join(seed=1)
        self.critic, self.maker = DistributedDataParallel(first), DistributedDataParallel(second)
        if body == "closure":
            self.of_critic: torch.optim.Optimizer = torch.optim.LBFGS(self.critic.parameters(), lr=0.1, max_iter=3)
        else:
            self.of_critic = torch.optim.Adam(self.critic.parameters(), lr=0.01)
        self.of_maker = torch.optim.SGD(self.maker.parameters(), lr=0.05, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.of_critic, step_size=2, gamma=0.7)
        self.average = torch.optim.swa_utils.AveragedModel(first)
        self.step: understudy.Step | None = None
        self.maker.module[0].register_full_backward_pre_hook(lambda *_: self.at("second-backward"))
        self.of_maker.register_step_pre_hook(lambda *_: self.at("second-optimizer"))
        self.job.protect(
            critic=self.critic,
            maker=self.maker,
            of_critic=self.of_critic,
            of_maker=self.of_maker,
            scheduler=self.scheduler,
            average=self.average,
            data=batch_of,
        )

    def at(self, place: str) -> None:
        if self.step is None or self.step.rehearsing or self.step.number != FATAL or place != struck:
            return
        if self.job.rank == 1 and not (folder / "struck").exists():
            (folder / "struck").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def adversaries(self, batch: torch.Tensor) -> None:
        """The usual order: the critic has stepped when the maker's backward pass goes through it."""
        self.of_critic.zero_grad()
        made = self.maker(batch)
        (self.critic(made.detach()).mean() - self.critic(batch).mean()).backward()
        self.at("first-optimizer")
        self.of_critic.step()
        self.average.update_parameters(self.critic.module)
        self.scheduler.step()
        self.at("between")
        self.of_maker.zero_grad()
        (-self.critic(made).mean()).backward()
        self.of_maker.step()
        self.at("end")

    def closure(self, batch: torch.Tensor) -> None:
        evaluations = 0

        def loss_of_critic() -> float:
            nonlocal evaluations
            evaluations += 1
            if evaluations == 2:
                self.at("closure")
            self.of_critic.zero_grad()
            loss = self.critic(batch).square().mean()
            loss.backward()
            mean = loss.detach()
            torch.distributed.all_reduce(mean)  # the optimizer keeps it: it must be the same on all ranks
            return float(mean)

        self.of_critic.step(loss_of_critic)
        self.scheduler.step()

    def accumulation(self, batch: torch.Tensor) -> None:
        self.critic(batch).mean().backward()
        assert self.step is not None
        if self.step.number % 4 == 3:
            self.of_critic.step()
            self.of_critic.zero_grad()

    def wrong_shapes(self, batch: torch.Tensor) -> None:
        self.critic(batch[:, 1:])

    def own_group(self, _batch: torch.Tensor) -> None:
        torch.distributed.init_process_group("gloo")

    def run(self) -> None:
        for step in self.job.steps(STEPS):
            self.step = step
            if body == "no_with":
                continue
            with step:
                getattr(self, body)(step.batch())
            time.sleep(0.02)


if __name__ == "__main__":
    if body == "own_group_first":
        torch.distributed.init_process_group("gloo")
    Script().run()
