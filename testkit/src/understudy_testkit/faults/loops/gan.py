"""A GAN: the generator's backward pass comes after the discriminator's optimizer has stepped, in one body.

Its line of a step is written in the body, between the two. Another one, for people, is printed right after the step: it
tells the step's losses where this process has computed them, and is missing where it has not.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import softplus
from torch.nn.parallel import DistributedDataParallel

import understudy
from understudy_testkit.faults.catalogue import FaultPoint
from understudy_testkit.faults.loops.arming import armed, halves

EVALUATE_EVERY = 5
_BATCH, _NOISE, _WIDTH = 16, 4, 16


class Rings(torch.utils.data.Dataset[torch.Tensor]):
    """Points on a circle."""

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, number: int) -> torch.Tensor:
        angle = torch.tensor(number * 2.399963)
        return torch.stack([angle.cos(), angle.sin()])


def generator() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(_NOISE, _WIDTH), nn.BatchNorm1d(_WIDTH), nn.ReLU()),
        *(nn.Linear(_WIDTH, _WIDTH), nn.BatchNorm1d(_WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 2)),
    )


def discriminator() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(2, _WIDTH), nn.LeakyReLU(0.2), nn.Linear(_WIDTH, _WIDTH), nn.LeakyReLU(0.2), nn.Linear(_WIDTH, 1))
    )


def train(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    bare_maker, bare_critic = generator(), discriminator()
    fixed_noise = torch.randn(64, _NOISE)
    job = understudy.join(seed=7)
    maker, critic = DistributedDataParallel(bare_maker), DistributedDataParallel(bare_critic)
    of_maker = torch.optim.Adam(halves(maker.parameters()), lr=2e-3, betas=(0.5, 0.999))
    of_critic = torch.optim.Adam(halves(critic.parameters()), lr=2e-3, betas=(0.5, 0.999))
    loader = torch.utils.data.DataLoader(Rings(), batch_size=_BATCH, shuffle=True, drop_last=True)
    faults = armed(job, options)
    faults.arm(bare_maker[3], of_maker)
    faults.arm_inside(of_critic, FaultPoint.IN_FIRST_OPTIMIZER)
    job.protect(maker=maker, critic=critic, of_maker=of_maker, of_critic=of_critic, data=loader)
    log = options.folder / f"log-{job.rank}.txt"
    progress = options.folder / f"progress-{job.rank}.txt"
    evaluations = options.folder / f"evaluations-{job.rank}.txt"

    @job.section("evaluate")
    def evaluate(step: int) -> None:
        maker.eval()
        with torch.no_grad():
            points = bare_maker(fixed_noise[job.rank :: job.world_size])
        moments = torch.stack([points.mean(), points.square().mean(), (points.norm(dim=1) - 1).abs().mean()])
        faults.at(FaultPoint.EVALUATION)
        dist.all_reduce(moments)
        maker.train()
        with open(evaluations, "a") as file:
            print(step, *(moments / job.world_size).tolist(), file=file)

    @job.section("save")
    def save(step: int) -> None:
        if job.rank == 0:
            torch.save(bare_maker.state_dict(), options.folder / f"maker-{step}.pt")
        faults.at(FaultPoint.SAVING)
        if job.rank == 0:
            torch.save(bare_critic.state_dict(), options.folder / f"critic-{step}.pt")
        dist.barrier()

    for step in faults.watch(job.steps()):
        with step:
            real = step.batch()
            made = maker(torch.randn(_BATCH, _NOISE))
            critic_loss = softplus(-critic(real)).mean() + softplus(critic(made.detach())).mean()
            if not step.rehearsing:
                critic_loss.register_hook(lambda _: faults.at(FaultPoint.FIRST_BACKWARD))
            critic_loss.backward()
            of_critic.step()
            if not step.rehearsing:
                faults.at(FaultPoint.LOG)
                with open(log, "a") as file:
                    print(step.number, critic_loss.item(), file=file)
                faults.at(FaultPoint.BETWEEN_OPTIMIZERS)
            maker_loss = softplus(-critic(made)).mean()
            maker_loss.backward()
            of_maker.step()
            of_maker.zero_grad()
            of_critic.zero_grad()
        if step.committed:
            faults.at(FaultPoint.BEFORE_SECTION)
            if not step.inherited:
                with open(progress, "a") as file:
                    print(step.number, critic_loss.item(), maker_loss.item(), file=file)
            if (step.number + 1) % EVALUATE_EVERY == 0:
                evaluate(step.number)
                save(step.number)
            if step.number + 1 == options.steps:
                job.finish()
    end = {"maker": bare_maker.state_dict(), "critic": bare_critic.state_dict()}
    torch.save(end, options.folder / f"end-{job.rank}.pt")
