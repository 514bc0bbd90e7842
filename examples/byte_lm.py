"""A compact GPT over bytes and its data, this project's own text. Used by the numbered examples; plain PyTorch."""

import argparse
import math
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils.data import Dataset

VOCABULARY = 256
REPOSITORY = Path(__file__).resolve().parent.parent


def read_options(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64, help="bytes per sample")
    parser.add_argument("--batch-size", type=int, default=8, help="samples per rank and step")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--print-every", type=int, default=10)
    return parser.parse_args()


class Text(Dataset[Tensor]):
    """Windows of `context` + 1 bytes over the documentation and source of this project, in a fixed order.

    Files that change between two runs change the data: compare runs of one checkout.
    """

    def __init__(self, context: int) -> None:
        files = [
            REPOSITORY / "README.md",
            *sorted(REPOSITORY.glob("docs/*.md")),
            *sorted(REPOSITORY.glob("src/**/*.py")),
        ]
        text = b"\n".join(file.read_bytes() for file in files if file.is_file())
        self.bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.context = context

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // self.context

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.context
        return self.bytes[start : start + self.context + 1].long()


class Block(nn.Module):
    """Attention and a feed-forward layer, each around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        parts = self.query_key_value(self.norm_attention(x)).chunk(3, dim=-1)
        query, key, value = (
            part.view(samples, length, self.heads, width // self.heads).transpose(1, 2) for part in parts
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(samples, length, width))
        return x + self.feed_forward(self.norm_feed_forward(x))


class Embedding(nn.Module):
    """Bytes and their places, as vectors."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)

    def forward(self, inputs: Tensor) -> Tensor:
        x: Tensor = self.tokens(inputs) + self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        return x


class ByteGPT(nn.Module):
    """Takes windows of bytes and returns the mean loss of predicting each byte from those before it."""

    def __init__(self, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.embedding = Embedding(width, context)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, window: Tensor) -> Tensor:
        inputs, targets = window[:, :-1], window[:, 1:]
        x = self.embedding(inputs)
        for block in self.blocks:
            x = block(x)
        return next_byte_loss(self.head(self.norm(x)), targets)

    def stages(self, count: int) -> list[nn.Sequential]:
        """The same layers in `count` pieces, for a pipeline."""
        layers = [self.embedding, *self.blocks, self.norm, self.head]
        bounds = [len(layers) * number // count for number in range(count + 1)]
        return [nn.Sequential(*layers[bounds[number] : bounds[number + 1]]) for number in range(count)]


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def average_gradients(model: nn.Module, replicas: dist.ProcessGroup) -> None:
    """Data parallelism by hand: every gradient becomes the mean over the replicas."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            gradient = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
            dist.all_reduce(gradient, group=replicas)
            gradient /= replicas.size()


def warmup_and_cosine(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """Up to the full rate in the first tenth, then down to a tenth of it."""
    warmup = max(1, steps // 10)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
