"""The work under `understudy run`."""

import understudy
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
    bare = build_model(work)
    data = build_data(work)
    job = understudy.join(seed=work.seed)
    model = distribute(bare, work)
    optimizer = build_optimizer(model)
    job.protect(model=model, optimizer=optimizer, data=data)
    recorder = Recorder(folder, job.rank, job.world_size)
    job.on_phase(lambda phase, _: recorder.noticed(phase) if phase == "stop" else None)
    for step in job.steps(work.steps):
        with step:
            loss = loss_of(model, step.batch())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if step.committed and not step.rehearsing:
            samples = data.sample_ids(step.number, job.rank, job.world_size)
            recorder.step(step.number, loss.item(), samples, job.world_size)
    recorder.end(digest_of(model))


if __name__ == "__main__":
    main()
