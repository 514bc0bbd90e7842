"""Train a byte-level language model with DDP. Every line that Understudy asks for is marked with `# <-`.

understudy run --nproc-per-node 4 --spares 1 examples/01_ddp.py
torchrun --standalone --nproc-per-node 4 examples/01_ddp.py
python examples/01_ddp.py --steps 20
"""

import time

import torch
from byte_lm import ByteGPT, Text, read_options, warmup_and_cosine
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import understudy  # <-

options = read_options("Train a byte-level language model with DDP.")
torch.set_num_threads(1)
job = understudy.join(seed=1234)  # <- seeds as well; a spare waits here until it is given a rank

model = DistributedDataParallel(ByteGPT(options.width, options.layers, options.heads, options.context).to(job.device))
optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
scheduler = warmup_and_cosine(optimizer, options.steps)
loader = DataLoader(Text(options.context), batch_size=options.batch_size, shuffle=True, drop_last=True)
job.protect(model=model, optimizer=optimizer, scheduler=scheduler, data=loader)  # <-

began, tokens = time.monotonic(), 0
for step in job.steps(options.steps):  # <-
    with step:  # <- this body may run again after a fault; only one run of it counts
        loss = model(step.batch().to(job.device))  # <-
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    if step.committed:  # <- true exactly once for every step: print and log here
        tokens += options.batch_size * options.context * job.world_size
        if job.rank == 0 and (step.number % options.print_every == 0 or step.number + 1 == options.steps):
            speed = tokens / (time.monotonic() - began)
            print(f"step {step.number:4d}  loss {loss.item():.4f}  {speed:.0f} tokens/s", flush=True)
