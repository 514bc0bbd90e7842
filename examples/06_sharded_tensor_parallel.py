"""FSDP2 with replicas, and tensor parallelism inside each shard: 2 replicas x 2 shards x 2.

    understudy run --nproc-per-node 8 --spares 1 examples/06_sharded_tensor_parallel.py

Needs a multiple of 8 ranks.
"""

import torch
from byte_lm import ByteGPT, Text, read_options
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader

import understudy  # <-

options = read_options("Train a byte-level language model with FSDP2 and tensor parallelism.")
torch.set_num_threads(1)
job = understudy.join(seed=1234)  # <-

names = ("replicas", "shards", "tensor")
mesh = init_device_mesh(job.device.type, (2, job.world_size // 4, 2), mesh_dim_names=names)
model = ByteGPT(options.width, options.layers, options.heads, options.context).to(job.device)
for block in model.blocks:
    parallelize_module(
        block, mesh["tensor"], {"feed_forward.0": ColwiseParallel(), "feed_forward.2": RowwiseParallel()}
    )
    fully_shard(block, mesh=mesh["replicas", "shards"])
fully_shard(model, mesh=mesh["replicas", "shards"])
optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
loader = DataLoader(Text(options.context), batch_size=options.batch_size, shuffle=True, drop_last=True)
share = (job.rank // 2, job.world_size // 2)  # both ranks of a tensor pair work on the same samples
job.protect(model=model, optimizer=optimizer, data=loader, share=share)  # <-

for step in job.steps(options.steps):  # <-
    with step:  # <-
        loss = model(step.batch().to(job.device))  # <-
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if step.committed and job.rank == 0 and step.number % options.print_every == 0:  # <-
        print(f"step {step.number:4d}  loss {loss.item():.4f}", flush=True)
