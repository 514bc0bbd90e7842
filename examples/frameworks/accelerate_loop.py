"""A small language model in a loop of the script's own, with Hugging Face's Accelerate: accumulation, clipping, a
schedule, evaluation with gathered predictions, checkpoints.

    understudy run --nproc-per-node 2 --spares 1 examples/frameworks/accelerate_loop.py FOLDER

The lines that name `understudy` are all that a user adds or changes. Checkpoints, and what each rank has found, are
written to FOLDER.
"""

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader

from understudy.integrations import accelerate as understudy

WORDS, LENGTH, WIDTH, SAMPLES, LOG_EVERY, SAVE_EVERY = 61, 16, 32, 88, 2, 4


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Numbers that follow from the one before: a small model can learn that."""

    def __init__(self, first: int, count: int) -> None:
        self._first, self._count = first, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        start = torch.randint(WORDS, (1,), generator=torch.Generator().manual_seed(self._first + number))
        return {"input_ids": (start + 7 * torch.arange(LENGTH)) % WORDS}


class Model(nn.Module):
    """Returns loss and logits, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, nhead=2, dim_feedforward=64, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids: torch.Tensor) -> Any:
        causal = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        hidden = self.words(input_ids) + self.places(torch.arange(LENGTH))
        logits = self.head(self.block(hidden, src_mask=causal, is_causal=True))
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())
        return SimpleNamespace(loss=loss, logits=logits)


class Progress:
    """What the loop counts. Accelerate calls it registered for checkpointing."""

    def __init__(self) -> None:
        self.steps, self.loss, self.history = 0, 0.0, list[dict[str, Any]]()

    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def train(folder: Path, count: int, job: Any) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model: Any = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=60)
    loader: Any = DataLoader(Sentences(0, SAMPLES), batch_size=4, shuffle=True)
    held_out = DataLoader(Sentences(10_000, 13), batch_size=4)
    model, optimizer, loader, held_out, scheduler = accelerator.prepare(model, optimizer, loader, held_out, scheduler)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)

    def compute(batch: Any) -> Any:  # understudy: what was the begin of the loop's body
        loss = model(**batch).loss
        accelerator.backward(loss)
        return loss.detach()  # understudy

    @job.section("evaluate")  # understudy
    def evaluate() -> float:
        model.eval()
        right, guessed = 0, 0
        for batch in held_out:
            with torch.no_grad():
                guesses = model(**batch).logits.argmax(-1)[:, :-1]
            guesses, words = accelerator.gather_for_metrics((guesses, batch["input_ids"][:, 1:]))
            right, guessed = right + int((guesses == words).sum()), guessed + words.numel()
        return right / guessed

    epochs, loader, compute = understudy.protect(accelerator, job, loader, compute, model)
    for epoch in epochs(count):  # understudy: it was `range`
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                loss = compute(batch)  # understudy
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            progress.loss += loss.item()
            if not accelerator.sync_gradients:
                continue
            progress.steps += 1
            if progress.steps % LOG_EVERY == 0:
                rate, step = scheduler.get_last_lr()[0], progress.steps
                progress.history.append({"step": step, "loss": progress.loss, "norm": norm.item(), "rate": rate})
                progress.loss = 0.0
            if progress.steps % SAVE_EVERY == 0:
                accelerator.save_state(str(folder / "checkpoints" / f"step-{progress.steps}"))
        accuracy = evaluate()
        progress.history.append({"epoch": epoch, "accuracy": accuracy})
    accelerator.wait_for_everyone()
    digest = [float(value.double().sum()) for value in accelerator.unwrap_model(model).state_dict().values()]
    found = {"history": progress.history, "weights": digest}
    (folder / f"found-{accelerator.process_index}.json").write_text(json.dumps(found, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    job = understudy.join()
    set_seed(11)
    train(options.folder, options.epochs, job)


if __name__ == "__main__":
    main()
