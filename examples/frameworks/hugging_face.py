"""A small GPT-2 from a config, trained by Hugging Face's Trainer: accumulation, evaluation, saving, early stopping.

    understudy run --nproc-per-node 2 --spares 1 examples/frameworks/hugging_face.py FOLDER

The lines with `understudy` are all that a user adds. Checkpoints, and what each rank has logged, are written to FOLDER.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from understudy.integrations import hugging_face as understudy

WORDS, LENGTH, SAMPLES = 61, 16, 88


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Numbers that follow from the one before: a small model can learn that."""

    def __init__(self, first: int, count: int) -> None:
        self._first, self._count = first, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        start = torch.randint(WORDS, (1,), generator=torch.Generator().manual_seed(self._first + number))
        sentence = (start + 7 * torch.arange(LENGTH)) % WORDS
        return {"input_ids": sentence, "labels": sentence}


def streamed() -> Any:
    """The same sentences as a stream of Hugging Face's datasets, with a shuffle buffer, over and over."""
    from datasets import Dataset

    whole = Dataset.from_list([Sentences(0, SAMPLES)[number] for number in range(SAMPLES)])
    stream = whole.to_iterable_dataset(num_shards=4).shuffle(seed=7, buffer_size=20)
    return stream.repeat(None).with_format("torch")


def make_trainer(folder: Path, epochs: int, **more: Any) -> Trainer:
    args = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        num_train_epochs=epochs,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=5e-3,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=4,
        save_total_limit=2,
        metric_for_best_model="loss",
        load_best_model_at_end=True,
        include_num_input_tokens_seen="all",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        seed=11,
        **more,
    )
    model = GPT2LMHeadModel(config)
    data, held_out = streamed() if options.stream else Sentences(0, SAMPLES), Sentences(10_000, 13)
    stopping = EarlyStoppingCallback(early_stopping_patience=3)
    return Trainer(model, args, train_dataset=data, eval_dataset=held_out, callbacks=[stopping])


parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--more", type=json.loads, default={}, help='of TrainingArguments, such as {"bf16": true}')
parser.add_argument("--stream", action="store_true", help="an iterable dataset")
options, _ = parser.parse_known_args()
set_seed(11)
config = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, use_cache=False)
config.bos_token_id = config.eos_token_id = 0
job = understudy.join()


def main() -> None:
    trainer = make_trainer(options.folder, options.epochs, **options.more)
    understudy.protect(trainer, job)
    trainer.train()
    digest = [float(value.double().sum()) for value in trainer.model.state_dict().values()]
    found = {"history": trainer.state.log_history, "best": trainer.state.best_metric, "weights": digest}
    (options.folder / f"found-{job.rank}.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
