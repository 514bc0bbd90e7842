"""DeepSpeed with ZeRO-1 and bf16: accumulation, clipping, a schedule, evaluation, checkpoints of DeepSpeed's own.

    understudy run --nproc-per-node 2 --spares 1 --peer-snapshot-every 1 examples/frameworks/deepspeed_zero1.py FOLDER

The lines that name `understudy` are all that a user adds or changes. Checkpoints, and what each rank has found, are
written to FOLDER.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from understudy.integrations import deepspeed as understudy

FEATURES, SAMPLES = 16, 96
CONFIGURATION = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_allow_untested_optimizer": True,
}


def samples(count: int, seed: int) -> TensorDataset:
    numbers = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, FEATURES, generator=numbers)
    return TensorDataset(inputs.bfloat16(), inputs.sum(1).sin().bfloat16())


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Two groups: weights decay, and biases do not."""
    parameters = list(model.parameters())
    decaying = {"params": [one for one in parameters if one.ndim > 1], "weight_decay": 0.1}
    return torch.optim.AdamW([decaying, {"params": [one for one in parameters if one.ndim < 2]}], lr=0.01)


def loss_of(engine: Any, batch: Any) -> torch.Tensor:
    inputs, wanted = batch
    return nn.functional.mse_loss(engine(inputs).squeeze(1).float(), wanted.float())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--stage", type=int, default=1, help="of ZeRO")
    options = parser.parse_args()
    job = understudy.join()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1))
    optimizer = optimizer_of(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    configuration = CONFIGURATION | {"zero_optimization": {"stage": options.stage}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=configuration)
    training = samples(SAMPLES, 1)
    loader = DataLoader(training, batch_size=4, sampler=DistributedSampler(training))
    understudy.protect(engine, job, data=loader)
    held_out = samples(16, 2)[dist.get_rank() :: dist.get_world_size()]

    @job.section("evaluate")  # understudy
    def evaluate() -> float:
        with torch.no_grad():
            loss = loss_of(engine, held_out).detach()
        dist.all_reduce(loss)
        return loss.item() / dist.get_world_size()

    with open(options.folder / f"metrics-{engine.global_rank}.csv", "a") as metrics:
        for step in job.steps(options.steps):  # understudy
            with step:  # understudy
                for batch in step.batches():  # understudy: as many as are accumulated
                    engine.backward(loss_of(engine, batch))
                    engine.step()
            if not step.committed:  # understudy: a rank was lost, and the step comes again
                continue
            if step.number % 4 == 3 and (loss := evaluate()) is not None:
                print(step.number, schedule.get_last_lr(), loss, sep=",", file=metrics, flush=True)
            if step.number % 6 == 5:
                engine.save_checkpoint(options.folder / "checkpoint")
    weights = [value.double().sum().item() for value in model.parameters()]
    result = {"weights": weights, "steps": engine.global_steps, "rate": schedule.get_last_lr()}
    (options.folder / f"found-{engine.global_rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
