"""A mixture of experts: one expert per rank of a pair, tokens travel by all-to-all, and replicas of that (expert x data
parallel).

    understudy run --nproc-per-node 4 --spares 1 examples/05_experts.py

Needs an even number of ranks, 4 or more. Experts have equal names and shapes on all ranks, but not equal bytes: twins
are found by comparing bytes, so an expert is only ever copied from the same expert.
"""

import torch
import torch.distributed as dist
from byte_lm import ByteGPT, Text, average_gradients, read_options
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader

import understudy  # <-


class Experts(nn.Module):
    """Each expert chooses half of every rank's bytes by the router's scores; they travel there and back."""

    def __init__(self, width: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        torch.manual_seed(98)
        self.router = nn.Linear(width, group.size())
        torch.manual_seed(99 + dist.get_rank(group))
        self.expert = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        scores, chosen = self.router(flat).softmax(dim=-1).t().topk(len(flat) // self.group.size())
        places = chosen.flatten()
        there = all_to_all_single_autograd(flat[places], None, None, self.group)
        back = all_to_all_single_autograd(self.expert(there).contiguous(), None, None, self.group)
        return flat.index_add(0, places, back * scores.reshape(-1, 1)).view_as(x)


options = read_options("Train a byte-level language model with experts.")
torch.set_num_threads(1)
job = understudy.join(seed=1234)  # <-

mesh = init_device_mesh(job.device.type, (job.world_size // 2, 2), mesh_dim_names=("replicas", "experts"))
model = ByteGPT(options.width, options.layers, options.heads, options.context).to(job.device)
experts = Experts(options.width, mesh.get_group("experts")).to(job.device)
dense = [*model.parameters(), *experts.router.parameters()]
model.blocks.insert(options.layers // 2, experts)
optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
loader = DataLoader(Text(options.context), batch_size=options.batch_size, shuffle=True, drop_last=True)
job.protect(model=model, optimizer=optimizer, data=loader)  # <-

for step in job.steps(options.steps):  # <-
    with step:  # <-
        loss = model(step.batch().to(job.device))  # <-
        loss.backward()
        average_gradients(experts.expert, mesh.get_group("replicas"))
        for parameter in dense:
            dist.all_reduce(parameter.grad)
            parameter.grad /= job.world_size
        optimizer.step()
        optimizer.zero_grad()
    if step.committed and job.rank == 0 and step.number % options.print_every == 0:  # <-
        print(f"step {step.number:4d}  loss {loss.item():.4f}", flush=True)
