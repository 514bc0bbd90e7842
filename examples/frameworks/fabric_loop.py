"""A loop with Lightning Fabric: epochs, accumulation, clipping, a schedule, evaluation with reductions, checkpoints.

    understudy run --nproc-per-node 2 --spares 1 examples/frameworks/fabric_loop.py FOLDER

The lines that name `understudy` are all that a user adds or changes. Checkpoints, and what each rank has found, are
written to FOLDER.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from understudy.integrations import fabric as understudy

FEATURES, ACCUMULATED = 16, 2


def samples(count: int, seed: int) -> TensorDataset:
    inputs = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs.sum(1).sin())


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    inputs, wanted = batch
    return nn.functional.mse_loss(model(inputs).squeeze(1), wanted)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    job = understudy.join()
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp", precision="bf16-mixed")
    fabric.launch()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.Dropout(0.1), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    model, optimizer = fabric.setup(network, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(samples(96, 1), batch_size=4, shuffle=True, num_workers=2))
    held_out = fabric.setup_dataloaders(DataLoader(samples(32, 2), batch_size=4))
    understudy.protect(fabric, job, model, optimizer, data=loader, batches_per_step=ACCUMULATED, schedule=schedule)

    @job.section("evaluate")  # understudy
    def evaluate() -> float:
        model.eval()
        with torch.no_grad():
            losses = [loss_of(model, batch) for batch in held_out]
        model.train()
        return float(fabric.all_reduce(torch.stack(losses).mean()))

    rows = options.folder / f"metrics-{fabric.global_rank}.csv"
    for epoch in job.epochs(options.epochs):  # understudy: it was `range`
        with epoch:  # understudy
            for step in epoch.steps():  # understudy
                with step:  # understudy
                    for place, batch in enumerate(step.batches()):  # understudy: as many as are accumulated
                        with fabric.no_backward_sync(model, enabled=place + 1 < ACCUMULATED):
                            fabric.backward(loss_of(model, fabric.to_device(batch)))
                    fabric.clip_gradients(model, optimizer, max_norm=0.5)
                    optimizer.step()
                    optimizer.zero_grad()
            schedule.step()
            with rows.open("a") as file:
                print(epoch.number, schedule.get_last_lr(), evaluate(), sep=",", file=file)
            fabric.save(options.folder / f"epoch-{epoch.number}.ckpt", {"model": model, "optimizer": optimizer})
    weights = [value.double().sum().item() for value in network.state_dict().values()]
    (options.folder / f"found-{fabric.global_rank}.json").write_text(json.dumps({"weights": weights}))


if __name__ == "__main__":
    main()
