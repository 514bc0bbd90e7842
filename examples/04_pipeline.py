"""The same model in two pipeline stages, and replicas of that (pipeline x data parallel), with the 1F1B schedule.

    understudy run --nproc-per-node 4 --spares 1 examples/04_pipeline.py

Needs an even number of ranks, 4 or more. Nothing is said about the pipeline: Understudy finds stages and schedules, and
makes them forget a step that was cut short. `--batch-size` must be a multiple of 4, the number of microbatches.
"""

import torch
from byte_lm import ByteGPT, Text, average_gradients, next_byte_loss, read_options
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import DataLoader

import understudy  # <-

options = read_options("Train a byte-level language model with pipeline and data parallelism.")
torch.set_num_threads(1)
job = understudy.join(seed=1234)  # <-

mesh = init_device_mesh(job.device.type, (job.world_size // 2, 2), mesh_dim_names=("replicas", "stages"))
place = mesh.get_local_rank("stages")
whole = ByteGPT(options.width, options.layers, options.heads, options.context).to(job.device)
model = whole.stages(2)[place]
stage = PipelineStage(model, place, 2, job.device, group=mesh.get_group("stages"))
schedule = Schedule1F1B(stage, 4, loss_fn=next_byte_loss)
optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
loader = DataLoader(Text(options.context), batch_size=options.batch_size, shuffle=True, drop_last=True)
share = (mesh.get_local_rank("replicas"), mesh["replicas"].size())
job.protect(model=model, optimizer=optimizer, data=loader, share=share)  # <-

for step in job.steps(options.steps):  # <-
    losses: list[torch.Tensor] = []
    with step:  # <-
        window = step.batch().to(job.device)  # <-
        if place == 0:
            schedule.step(window[:, :-1])
        else:
            schedule.step(target=window[:, 1:], losses=losses)
        average_gradients(model, mesh.get_group("replicas"))
        optimizer.step()
        optimizer.zero_grad()
    if step.committed and job.rank == 1 and step.number % options.print_every == 0:  # <-
        print(f"step {step.number:4d}  loss {torch.stack(losses).mean().item():.4f}", flush=True)
