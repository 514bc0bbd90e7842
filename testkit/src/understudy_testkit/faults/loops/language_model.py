"""A small language model: bf16, four batches per step, clipping, an average of the weights, checkpoints with DCP.

Its line of a step is written right after the step, in a section, from a protected meter: so a rank that has inherited
the step writes it as well.
"""

import argparse
import contextlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import understudy
from understudy_testkit.faults.catalogue import FaultPoint
from understudy_testkit.faults.loops.arming import armed, halves, strike_behind

EVALUATE_EVERY = 20
_ACCUMULATION, _BATCH, _WIDTH, _CONTEXT = 4, 2, 16, 24


class Text(torch.utils.data.Dataset[torch.Tensor]):
    """The bytes of a file that comes with every Python."""

    def __init__(self) -> None:
        self._bytes = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8)

    def __len__(self) -> int:
        return (len(self._bytes) - 1) // _CONTEXT

    def __getitem__(self, number: int) -> torch.Tensor:
        return self._bytes[number * _CONTEXT : (number + 1) * _CONTEXT + 1].long()


class Transformer(nn.Module):
    """Takes windows of bytes and returns the mean loss of predicting each byte from those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, _WIDTH), nn.Embedding(_CONTEXT, _WIDTH)
        self.layer = nn.TransformerEncoderLayer(
            _WIDTH, 2, 2 * _WIDTH, dropout=0.1, batch_first=True, norm_first=True, bias=False
        )
        self.head = nn.Linear(_WIDTH, 256, bias=False)

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        x = self.tokens(windows[:, :-1]) + self.places.weight
        mask = nn.Transformer.generate_square_subsequent_mask(_CONTEXT)
        x = self.layer(x, src_mask=mask, is_causal=True)
        return cross_entropy(self.head(x).flatten(0, 1), windows[:, 1:].flatten())


class Meter:
    """Of the last step, equal on all ranks. Protected, so that a replacement knows it."""

    def __init__(self) -> None:
        self.loss = self.norm = 0.0

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def train(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(6)
    bare = Transformer()
    text = Text()
    held_out = torch.stack([text[number] for number in range(16)])
    job = understudy.join(seed=6)
    model = DistributedDataParallel(bare)
    ema = AveragedModel(bare, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(halves(model.parameters()), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)
    loader = torch.utils.data.DataLoader(text, batch_size=_BATCH, shuffle=True, drop_last=True)
    meter = Meter()
    faults = armed(job, options)
    faults.arm(bare.layer, optimizer)
    strike_behind(faults, dcp.FileSystemWriter, "write_data", FaultPoint.SAVING)
    job.protect(model=model, optimizer=optimizer, scheduler=scheduler, ema=ema, meter=meter)
    job.protect(data=loader, batches_per_step=_ACCUMULATION)
    lines = options.folder / f"log-{job.rank}.txt"
    evaluations = options.folder / f"evaluations-{job.rank}.txt"

    @job.section("log")
    def log(step: int) -> None:
        faults.at(FaultPoint.LOG)
        with open(lines, "a") as file:
            print(step, meter.loss, meter.norm, scheduler.get_last_lr()[0], file=file)

    @job.section("evaluate")
    def evaluate(step: int) -> None:
        losses = []
        for network in (bare, ema):
            network.eval()
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                losses.append(network(held_out[job.rank :: job.world_size]).float())
            network.train()
        found = torch.stack(losses)
        faults.at(FaultPoint.EVALUATION)
        dist.all_reduce(found)
        with open(evaluations, "a") as file:
            print(step, *(found / job.world_size).tolist(), file=file)

    @job.section("save")
    def save(step: int) -> None:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "ema": ema.state_dict(), "step": step}
        dcp.save(state, checkpoint_id=options.folder / f"checkpoint-{step}")

    for step in faults.watch(job.steps(options.steps)):
        with step:
            total = torch.zeros(())
            for place, batch in enumerate(step.batches(), 1):
                last = place == _ACCUMULATION
                with contextlib.nullcontext() if last else model.no_sync():
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = model(batch) / _ACCUMULATION
                    loss.backward()
                total += loss.detach()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            dist.all_reduce(total)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            ema.update_parameters(bare)
            meter.loss, meter.norm = total.item() / job.world_size, norm.item()
        if step.committed:
            log(step.number)
            faults.at(FaultPoint.BEFORE_SECTION)
            if (step.number + 1) % EVALUATE_EVERY == 0:
                evaluate(step.number)
                save(step.number)
    torch.save({"model": bare.state_dict(), "ema": ema.state_dict()}, options.folder / f"end-{job.rank}.pt")
