"""torchtitan's debug model of Llama 3 with FSDP2 on 2 x 2 ranks: validation, checkpoints; data and tokenizer made here.

    understudy run --nproc-per-node 4 --spares 1 examples/frameworks/torchtitan_debug.py FOLDER

The lines that name `understudy` are all that a user adds. Checkpoints, and what each rank has found, are written to
FOLDER. It needs GPUs, as torchtitan does. A trainer that needs no script of its own is protected by the command alone:
`understudy run ... -m understudy.integrations.torchtitan --module llama3 --config llama3_debugmodel`.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed
from datasets import Dataset
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.components.validate import Validator
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataLoader
from torchtitan.models.llama3.config_registry import llama3_debugmodel

from understudy.integrations import torchtitan as understudy

WORDS = ("a rank is lost", "a spare takes over", "training goes on", "nothing else has changed", "and again")


class Bytes(BaseTokenizer):  # type: ignore[misc]
    """A token per byte."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc]
        pass

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self.eos_id = 1

    def encode(self, text: str, **_: Any) -> list[int]:
        return [0, *(2 + byte for byte in text.encode()), self.eos_id]

    def decode(self, tokens: list[int]) -> str:
        return bytes(token - 2 for token in tokens if token > 1).decode()

    def get_vocab_size(self) -> int:
        return 258


def sentences(count: int, stride: int) -> Dataset:
    """Of different lengths."""
    texts = [", ".join(WORDS[(place * stride + word) % 5] for word in range(1 + place % 7)) for place in range(count)]
    return Dataset.from_dict({"text": texts})


def configuration(folder: Path, steps: int) -> Any:
    for name, count, stride in (("toy", 200, 3), ("toy_validation", 50, 2)):
        made = sentences(count, stride)
        DATASETS[name] = DatasetConfig(name, lambda _, made=made: made, lambda sample: sample["text"])
    config = llama3_debugmodel()
    config.model_spec.model.layers = config.model_spec.model.layers[:2]
    config.dump_folder, config.tokenizer = str(folder), Bytes.Config()
    config.parallelism.data_parallel_replicate_degree, config.parallelism.data_parallel_shard_degree = 2, 2
    config.training.steps, config.training.seq_len = steps, 32
    config.training.local_batch_size, config.training.global_batch_size = 2, 16  # accumulates twice
    config.dataloader = HuggingFaceTextDataLoader.Config(dataset="toy")
    held_out = HuggingFaceTextDataLoader.Config(dataset="toy_validation")
    config.validator = Validator.Config(enable=True, freq=4, steps=2, dataloader=held_out)
    config.checkpoint.enable, config.checkpoint.interval = True, 6
    config.debug.seed, config.comm.trace_buf_size = 5, 0
    return config


def record(trainer: Any, rows: Path) -> None:
    """Writes what is logged of each step to a file, without times."""
    log, log_validation = trainer.metrics_processor.log, trainer.metrics_processor.log_validation

    def write(*values: Any) -> None:
        with rows.open("a") as file:
            file.write(",".join(map(str, values)) + "\n")

    def log_train(step: int, *values: Any, **more: Any) -> None:
        log(step, *values, **more)
        write("train", step, *values, *more["extra_metrics"].values())

    def log_held_out(loss: float, step: int, **more: Any) -> None:
        log_validation(loss, step, **more)
        write("validation", step, loss)

    trainer.metrics_processor.log, trainer.metrics_processor.log_validation = log_train, log_held_out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    config = configuration(options.folder, options.steps)
    job = understudy.join()
    trainer = config.build()
    understudy.protect(trainer, job)
    rank = torch.distributed.get_rank()
    record(trainer, options.folder / f"metrics-{rank}.csv")
    trainer.train()
    local = [value.to_local().double().sum().item() for value in trainer.model_parts[0].parameters()]
    (options.folder / f"found-{rank}.json").write_text(json.dumps({"weights": local, "tokens": trainer.ntokens_seen}))
    trainer.close()


if __name__ == "__main__":
    main()
