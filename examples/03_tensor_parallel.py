"""The same model with its feed-forward layers split over two ranks, and replicas of that (tensor x data parallel).

    understudy run --nproc-per-node 4 --spares 1 examples/03_tensor_parallel.py

Needs an even number of ranks, 4 or more. Both ranks of a pair work on the same samples and draw the same random
numbers: `share` says so. The twin of a rank is its counterpart in the other replica.
"""

import torch
from byte_lm import ByteGPT, Text, average_gradients, read_options
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader

import understudy  # <-

options = read_options("Train a byte-level language model with tensor and data parallelism.")
torch.set_num_threads(1)
job = understudy.join(seed=1234)  # <-

mesh = init_device_mesh(job.device.type, (job.world_size // 2, 2), mesh_dim_names=("replicas", "tensor"))
model = ByteGPT(options.width, options.layers, options.heads, options.context).to(job.device)
for block in model.blocks:
    parallelize_module(
        block, mesh["tensor"], {"feed_forward.0": ColwiseParallel(), "feed_forward.2": RowwiseParallel()}
    )
optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
loader = DataLoader(Text(options.context), batch_size=options.batch_size, shuffle=True, drop_last=True)
share = (mesh.get_local_rank("replicas"), mesh["replicas"].size())
job.protect(model=model, optimizer=optimizer, data=loader, share=share)  # <-

for step in job.steps(options.steps):  # <-
    with step:  # <-
        loss = model(step.batch().to(job.device))  # <-
        loss.backward()
        average_gradients(model, mesh.get_group("replicas"))
        optimizer.step()
        optimizer.zero_grad()
    if step.committed and job.rank == 0 and step.number % options.print_every == 0:  # <-
        print(f"step {step.number:4d}  loss {loss.item():.4f}", flush=True)
