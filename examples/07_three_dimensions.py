"""Pipeline, tensor and data parallelism together: 2 replicas x 2 stages x 2.

    understudy run --nproc-per-node 8 --spares 1 examples/07_three_dimensions.py

Needs a multiple of 4 ranks, 8 or more.
"""

import torch
from byte_lm import Block, ByteGPT, Text, average_gradients, next_byte_loss, read_options
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader

import understudy  # <-

options = read_options("Train a byte-level language model with three kinds of parallelism.")
torch.set_num_threads(1)
job = understudy.join(seed=1234)  # <-

names = ("replicas", "stages", "tensor")
mesh = init_device_mesh(job.device.type, (job.world_size // 4, 2, 2), mesh_dim_names=names)
place = mesh.get_local_rank("stages")
whole = ByteGPT(options.width, options.layers, options.heads, options.context).to(job.device)
model = whole.stages(2)[place]
for layer in model:
    if isinstance(layer, Block):
        parallelize_module(
            layer, mesh["tensor"], {"feed_forward.0": ColwiseParallel(), "feed_forward.2": RowwiseParallel()}
        )
stage = PipelineStage(model, place, 2, job.device, group=mesh.get_group("stages"))
schedule = ScheduleGPipe(stage, 4, loss_fn=next_byte_loss)
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
    if step.committed and losses and job.rank % 4 == 2 and step.number % options.print_every == 0:  # <-
        print(f"step {step.number:4d}  loss {torch.stack(losses).mean().item():.4f}", flush=True)
