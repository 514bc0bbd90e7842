"""The work under torchrun, nothing else."""

import torch.distributed as dist

from understudy_testkit.benchmark.recording import Recorder
from understudy_testkit.benchmark.workload import (
    build_data,
    build_model,
    build_optimizer,
    digest_of,
    distribute,
    loss_of,
    told_by_runner,
)


def main() -> None:
    scenario, folder = told_by_runner()
    work = scenario.work
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = distribute(build_model(work), work)
    optimizer = build_optimizer(model)
    data = build_data(work)
    recorder = Recorder(folder, rank, ranks)
    for step in range(work.steps):
        loss = loss_of(model, data.batch(step, rank, ranks))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        recorder.step(step, loss.item(), data.sample_ids(step, rank, ranks), ranks)
    recorder.end(digest_of(model))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
