"""A small LightningModule: accumulation, clipping, validation, metrics of all ranks, checkpoints, early stopping.

    understudy run --nproc-per-node 2 --spares 1 examples/frameworks/lightning_module.py FOLDER

The lines with `understudy` are all that a user adds. Checkpoints, the log, and what each rank has found are written to
FOLDER.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torchmetrics import Accuracy

from understudy.integrations import lightning as understudy

WIDTH, CLASSES, BATCH = 12, 3, 4


class Clouds(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Noisy points of a few classes."""

    def __init__(self, first: int, count: int) -> None:
        self._first, self._count = first, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        kind = number % CLASSES
        centre = torch.eye(WIDTH)[kind]
        noise = torch.randn(WIDTH, generator=torch.Generator().manual_seed(self._first + number))
        return centre + 0.9 * noise, torch.tensor(kind)


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, CLASSES)
        )
        self.train_accuracy = Accuracy(task="multiclass", num_classes=CLASSES)
        self.val_accuracy = Accuracy(task="multiclass", num_classes=CLASSES)
        self.margins: list[torch.Tensor] = []

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _index: int) -> torch.Tensor:
        points, kinds = batch
        guesses = self.network(points)
        loss = nn.functional.cross_entropy(guesses, kinds)
        self.train_accuracy(guesses, kinds)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("train_accuracy", self.train_accuracy, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _index: int) -> None:
        points, kinds = batch
        guesses = self.network(points)
        self.margins.append(guesses.max(dim=1).values.mean())
        self.val_accuracy(guesses, kinds)
        self.log("val_loss", nn.functional.cross_entropy(guesses, kinds), sync_dist=True)
        self.log("val_accuracy", self.val_accuracy)

    def on_validation_epoch_end(self) -> None:
        self.log("margin", torch.stack(self.margins).mean(), sync_dist=True)
        self.margins.clear()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-2)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)]  # steps once in an epoch


def make_trainer(folder: Path, epochs: int, **more: Any) -> lightning.Trainer:
    best = ModelCheckpoint(folder / "best", monitor="val_loss", save_top_k=2, save_last=True)
    regular = ModelCheckpoint(folder / "regular", every_n_train_steps=4, save_top_k=-1)
    stopping = EarlyStopping("val_loss", patience=2)
    return lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        log_every_n_steps=2,
        val_check_interval=0.5,
        logger=CSVLogger(folder),
        callbacks=[best, regular, stopping, LearningRateMonitor()],
        enable_progress_bar=False,
        enable_model_summary=False,
        **more,
    )


parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--epochs", type=int, default=3)
options, _ = parser.parse_known_args()
lightning.seed_everything(11, verbose=False)
model = Classifier()
data = torch.utils.data.DataLoader(Clouds(0, 118), BATCH, shuffle=True)
held_out = torch.utils.data.DataLoader(Clouds(10_000, 34), BATCH)
job = understudy.join()


def main() -> None:
    trainer = make_trainer(options.folder, options.epochs)
    understudy.protect(trainer, job)
    trainer.fit(model, data, held_out)
    found: dict[str, Any] = {"weights": [float(value.double().sum()) for value in model.state_dict().values()]}
    found |= {"metrics": {name: value.item() for name, value in trainer.callback_metrics.items()}}
    found |= {"steps": trainer.global_step, "callbacks": [one.state_dict() for one in trainer.callbacks]}
    (options.folder / f"found-{job.rank}.json").write_text(json.dumps(found, indent=1, default=float))


if __name__ == "__main__":
    main()
