"""Ray Train's TorchTrainer with a loop of one's own: epochs, prepared model and loader, evaluation, checkpoints.

    python examples/frameworks/ray_train.py FOLDER

The lines that name `understudy` are all that a user adds or changes. Each of the three workers of Ray Train is a host:
two with a rank and a spare, one with a spare only. Checkpoints, and what each rank has found, are written to FOLDER.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import ray.train.torch
import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from understudy.integrations import ray as understudy

FEATURES = 16


def samples(count: int, seed: int) -> TensorDataset:
    inputs = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs.sum(1).sin())


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    inputs, wanted = batch
    return nn.functional.mse_loss(model(inputs).squeeze(1), wanted)


def train_func(config: dict[str, Any]) -> None:
    job = understudy.join()
    torch.manual_seed(0)
    folder, rank = Path(config["folder"]), ray.train.get_context().get_world_rank()
    network = nn.Sequential(nn.Linear(FEATURES, 32), nn.LayerNorm(32), nn.Dropout(0.1), nn.Tanh(), nn.Linear(32, 1))
    model = ray.train.torch.prepare_model(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    loader = ray.train.torch.prepare_data_loader(DataLoader(samples(96, 1), batch_size=8, shuffle=True))
    held_out = ray.train.torch.prepare_data_loader(DataLoader(samples(32, 2), batch_size=8))
    job.protect(model=model, optimizer=optimizer, schedule=schedule, data=loader)  # understudy

    @job.section("evaluate")  # understudy
    def evaluate() -> float:
        model.eval()
        with torch.no_grad():
            loss = torch.stack([loss_of(model, batch) for batch in held_out]).mean()
        model.train()
        dist.all_reduce(loss)
        return float(loss) / ray.train.get_context().get_world_size()

    @job.section("save")  # understudy
    def save(epoch: int) -> None:
        if rank == 0:
            torch.save(network.state_dict(), folder / f"epoch-{epoch}.pt")
        dist.barrier()

    for epoch in job.epochs(config["epochs"]):  # understudy: it was `range`, and `set_epoch` of the sampler
        with epoch:  # understudy
            for step in epoch.steps():  # understudy: it was over the loader
                with step:  # understudy
                    loss = loss_of(model, step.batch())  # understudy: it was `batch`
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            schedule.step()
            with (folder / f"metrics-{rank}.csv").open("a") as metrics:
                print(epoch.number, schedule.get_last_lr(), evaluate(), sep=",", file=metrics)
            save(epoch.number)
    weights = [value.double().sum().item() for value in network.state_dict().values()]
    (folder / f"found-{rank}.json").write_text(json.dumps({"weights": weights}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"folder": str(options.folder.absolute()), "lr": 0.01, "epochs": options.epochs},
        scaling_config=ScalingConfig(num_workers=3),
    )
    understudy.protect(trainer, spare_hosts=1, run_dir=options.folder / "run")
    trainer.fit()


if __name__ == "__main__":
    main()
